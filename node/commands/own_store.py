"""The model store of this machine's agent, for commands that need no other settings. Checking the
settings would import all formats of outputs, which takes longer than listing models."""

from pathlib import Path

from node.models.store import ModelStore
from node.settings import Settings, default_home, read_environment


def open_store(home: Path | None, *, make_home: bool = False) -> ModelStore:
    """The store of the agent whose folder is `home`, or the configured one. With `make_home` that
    folder is created if necessary, readable by its owner only, since it will contain the token.
    Raises `StartError`."""
    given: dict[str, object] = {"home": default_home(), **read_environment()}
    folder = Path(str(home or given["home"])).expanduser()
    if make_home:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return ModelStore(Settings(home=folder).models_folder)
