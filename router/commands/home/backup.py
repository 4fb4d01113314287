"""`router backup`: copies the registry to a file, through the running router or without one."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from registry.backup import Contents, back_up, read_contents
from registry.claim import database_file
from registry.errors import RegistryError
from router.commands import console, wording
from router.commands.client import AdminClient, CommandFailed, NotRunning
from router.settings import Settings
from serving.whole_file import written_whole

_COPY_S = 300.0
"""Longest time that the router may take to copy its registry before it sends the copy."""
_ROWS = {
    "nodes": ("node", "nodes"),
    "aliases": ("alias", "aliases"),
    "keys": ("key", "keys"),
    "teams": ("team", "teams"),
    "policies": ("residency policy", "residency policies"),
    "schedules": ("schedule", "schedules"),
    "usage": ("usage record", "usage records"),
    "audit": ("audit event", "audit events"),
}
"""By table, the words for one of its rows and for several, in the order in which they are shown."""
_UNSHOWN = ("residency", "models")
"""Tables of what nodes report again by themselves."""


@dataclass(frozen=True, slots=True)
class BackupOptions:
    file: Path
    force: bool
    """Replace a file that exists."""
    allow_plain_http: bool
    of_file: bool
    """Read the registry's file, whether a router runs or not."""


def run(client: AdminClient, settings: Settings, chosen: BackupOptions, *, as_json: bool) -> None:
    file = chosen.file.expanduser().absolute()
    if file.resolve() == Path(settings.registry).resolve():
        raise CommandFailed(f"{file} is the registry itself; name another file.")
    copying = console.progress("Copying the registry")
    with _written(file, force=chosen.force) as partial, copying as show:
        source = _copy(client, settings, chosen, partial, show)
        contents = _checked(partial)
    _print(file, source, contents, as_json=as_json)


def _copy(
    client: AdminClient,
    settings: Settings,
    chosen: BackupOptions,
    partial: Path,
    show: Callable[[str], None],
) -> str:
    """Writes the backup, and returns a name for where it is from."""
    if not chosen.of_file:
        try:
            _download(client, partial, allow_plain_http=chosen.allow_plain_http)
            return f"the router at {client.access.url}"
        except NotRunning:
            if not client.access.is_local:
                raise
    return _copy_file(settings, partial, show)


def _download(client: AdminClient, partial: Path, *, allow_plain_http: bool) -> None:
    access = client.access
    if not (access.is_local or allow_plain_http or access.url.startswith("https:")):
        raise CommandFailed(
            "A backup holds the credentials of all nodes, and plain HTTP shows them to the "
            "network; run this command on the router's machine, or add --allow-plain-http if the "
            "network is yours."
        )
    with partial.open("wb") as out:
        client.download("/backup", lambda piece: _write(out, piece), _COPY_S)


def _write(out: BinaryIO, piece: bytes) -> None:
    try:
        out.write(piece)
    except OSError as error:
        # An error of the connection would be one of the router's.
        raise CommandFailed(f"The backup cannot be written ({error.strerror}).") from error


def _copy_file(settings: Settings, partial: Path, show: Callable[[str], None]) -> str:
    try:
        registry = database_file(settings.registry)
        if not registry.is_file():
            raise CommandFailed(
                f"No router runs here, and there is no registry {registry}; --router names a "
                "router on another machine."
            )
        back_up(
            registry,
            partial,
            lambda done, pages: show(f"Copying the registry, {100 * done // max(pages, 1)} %"),
        )
    except RegistryError as error:
        raise CommandFailed(str(error)) from error
    return str(registry)


def _checked(partial: Path) -> Contents:
    try:
        return read_contents(partial)
    except RegistryError as error:
        raise CommandFailed(f"The copy cannot be used: {error}") from error


@contextmanager
def _written(file: Path, *, force: bool) -> Iterator[Path]:
    try:
        with written_whole(file, replace=force) as partial:
            yield partial
    except FileExistsError as error:
        raise CommandFailed(f"{file} exists; --force replaces it.") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise CommandFailed(f"{file} cannot be written ({reason}).") from error


def _print(file: Path, source: str, contents: Contents, *, as_json: bool) -> None:
    if as_json:
        console.print_json({"file": str(file), "source": source, **asdict(contents)})
        return
    size = wording.size(file.stat().st_size)
    console.print_line(f"{file} ({size}) is a backup of {source}:")
    console.print_line(f"  {contents_text(contents)}.")
    console.print_line(
        "It holds the credentials of the nodes: keep it as safe as the router's folder. Keys are "
        f"in it as hashes only. `router restore {file}` puts it back."
    )


def contents_text(contents: Contents) -> str:
    """Names what is in a backup: `2 nodes, 4 keys, 1,203 usage records`."""
    others = (each for each in contents.rows if each not in (*_ROWS, *_UNSHOWN))
    counts = ((each, contents.rows.get(each, 0)) for each in (*_ROWS, *others))
    return ", ".join(_counted(table, count) for table, count in counts if count) or "nothing yet"


def _counted(table: str, count: int) -> str:
    one, several = _ROWS.get(table, (table, table))
    return f"{count:,} {(one if count == 1 else several).replace('_', ' ')}"


def age_text(contents: Contents) -> str:
    if contents.made_at_s is None:
        return "of unknown age"
    return f"made {wording.ago(contents.made_at_s, time.time())}"
