"""`node-agent doctor --hashes`: compares model files with the hashes recorded when they came."""

from collections.abc import Iterator

from node.commands.checks import Check, Level
from node.models.manifest import Manifests
from node.models.model_files import SUFFIX
from node.models.saved_hashes import sha256_of
from node.models.store import ModelEntry, ModelStore
from serving.terminal.bars import progress


def check_hashes(store: ModelStore) -> Iterator[Check]:
    """One finding for each model of the store; reads all of its files."""
    manifests = Manifests(store.folder)
    for entry in store.list():
        with progress(f"hashing {entry.name}"):
            yield _check(entry, manifests)


def _check(entry: ModelEntry, manifests: Manifests) -> Check:
    name = f"files of {entry.name}"
    recorded = manifests.recorded(entry)
    try:
        if not recorded:
            files = manifests.of(entry, lambda: False)
            sentence = (
                f"No hashes were recorded when it came, so that it is unknown whether its "
                f"{len(files)} files are as they were."
            )
            advice = "Those of now are recorded; later runs compare with them."
            return Check(name, Level.UNKNOWN, sentence, advice)
        missing = [path for path in recorded if not (entry.folder / path).is_file()]
        changed = [
            path
            for path, sha256 in recorded.items()
            if path not in missing and sha256_of(entry.folder / path, lambda: False) != sha256
        ]
    except OSError as error:
        sentence = f"A file of {entry.folder} cannot be read: {error.strerror}."
        return Check(name, Level.FAIL, sentence, "Check the disk, and pull the model again.")
    if not missing and not changed:
        return Check(
            name, Level.OK, f"All {len(recorded)} files have the hashes recorded for them."
        )
    parts = [f"{path} is missing" for path in missing] + [f"{path} has changed" for path in changed]
    is_weights = any(path.endswith(SUFFIX) for path in (*missing, *changed))
    advice = f"Unless you changed that: `node-agent rm {entry.name}`, then pull or import it again."
    level = Level.FAIL if is_weights else Level.WARN
    return Check(name, level, f"{'; '.join(parts)}.", advice)
