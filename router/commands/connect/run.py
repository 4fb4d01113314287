"""`router connect`: prints or writes the settings of a client, with a key made for it."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass

from router.api.admin.key_views import KeyRow, NewKey
from router.auth import KEY_PREFIX
from router.commands import console
from router.commands.client import AdminClient, CommandFailed, read_row, read_rows
from router.commands.connect.choice import Offer, choose, client_named
from router.commands.connect.clients import Client
from router.commands.connect.saving import FileChange, path_of, planned, save, stored_key
from router.commands.connect.setup import Endpoint, Setup
from router.settings import variable
from serving.server_url import read_url
from serving.terminal.output import put

_NO_KEY = "KEY"
"""Takes the place of the key until there is one."""
_MOST_NAME_CHARS = 64
_SHOWN_CHARS = 11


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    client: str
    model: str | None
    url: str | None
    """The router's address as the client's machine reaches it."""
    key: str
    """A key that exists; empty for a new one."""
    name: str | None
    """Name of the new key."""
    rotate_key: bool
    """Replace the secret of the key of that name, if there is one."""
    external: bool
    """The new key's requests may go to third-party servers."""
    write: bool


def run(admin: AdminClient, chosen: ConnectOptions) -> None:
    client = client_named(chosen.client)
    offer = _offer(admin, client, chosen)
    url = read_url(chosen.url, admin.access.url) if chosen.url else admin.access.url
    draft = Endpoint(url, _NO_KEY, offer.name, offer.context_tokens)
    if chosen.write:
        _write(admin, client, draft, chosen)
        return
    key, made = _key(admin, client, chosen)
    _print(client, client.setup(_with_key(draft, key)))
    _print_key(made)


# --- model and key ---


def _offer(admin: AdminClient, client: Client, chosen: ConnectOptions) -> Offer:
    offers = [
        Offer(str(each["id"]), each.get("context_window")) for each in admin.models(chosen.key)
    ]
    # Patterns are listed for admins only.
    patterns = not chosen.model and not chosen.key and client.alias
    aliases = [str(each["name"]) for each in admin.get("/aliases")] if patterns else []
    return choose(client, chosen.model, offers, aliases)


def _key(admin: AdminClient, client: Client, chosen: ConnectOptions) -> tuple[str, NewKey | None]:
    """Returns the client's key, and its row if it is new."""
    if chosen.key:
        return chosen.key, None
    name = chosen.name or key_name(client)
    rows = read_rows(KeyRow, admin.get("/keys"))
    if not any(row.name == name and row.revoked_at_s is None for row in rows):
        scopes = ["inference", "external"] if chosen.external else ["inference"]
        made = read_row(NewKey, admin.post("/keys", {"name": name, "scopes": scopes}))
        return made.key, made
    if not chosen.rotate_key:
        raise CommandFailed(
            f"There is a key {name} already, and a key is shown only once. --key KEY uses it, "
            "--rotate-key replaces its secret and keeps its limits, --name NAME makes one beside "
            "it."
        )
    if chosen.external:
        raise CommandFailed(
            f"--external is for a new key, and {name} exists; `router keys update` changes its "
            "scopes."
        )
    made = read_row(NewKey, admin.post("/keys/rotate", {"key": name}))
    return made.key, made


def key_name(client: Client) -> str:
    """Returns the name of the client's key on this machine."""
    machine = platform.node().partition(".")[0] or "this-machine"
    return f"{client.name}@{machine}"[:_MOST_NAME_CHARS]


def _with_key(draft: Endpoint, key: str) -> Endpoint:
    return Endpoint(draft.url, key, draft.model, draft.context_tokens)


# --- printing ---


def _print(client: Client, setup: Setup) -> None:
    """Prints the settings on standard output, and what to do with them on standard error."""
    for number, block in enumerate(setup.blocks()):
        if number:
            put()
        if block.file:
            put(f"{path_of(block.file, variable)}:\n")
        put(block.text, end="")
    if setup.written:
        console.print_error(f"`router connect {client.name} --write` writes them, merged.", "dim")


def _print_key(made: NewKey | None) -> None:
    if made is not None:
        console.print_error(
            f"The key is new: {made.name} ({', '.join(made.scopes)}). It is shown this once.", "dim"
        )


# --- writing ---


def _write(admin: AdminClient, client: Client, draft: Endpoint, chosen: ConnectOptions) -> None:
    setup = client.setup(draft)
    if not setup.written:
        raise CommandFailed(
            f"{client.title} has no file for its settings: it {setup.unwritten}. "
            "Without --write they are shown."
        )
    # Files that cannot be changed are found before a key is made.
    for file in setup.written:
        planned(file, path_of(file, variable))
    made = None
    stored = _stored_keys(setup)
    key = chosen.key or ("" if chosen.rotate_key else _accepted(admin, stored))
    if not key:
        key, made = _key(admin, client, chosen)
    files = client.setup(_with_key(draft, key)).written
    changes = [planned(file, path_of(file, variable)) for file in files]
    for change in changes:
        _save(change, [key, *stored])
    if made is not None:
        console.print_line(f"Its key is new: {made.name} ({', '.join(made.scopes)}).")
    command = setup.run.splitlines()[-1] if setup.run else ""
    if any(change.is_needed for change in changes) and command:
        console.print_line(f"`{command.split()[0]}` uses the fleet from its next start on.")


def _stored_keys(setup: Setup) -> list[str]:
    """Returns what the client's files have in the place of the key."""
    found = (stored_key(file, path_of(file, variable), _NO_KEY) for file in setup.written)
    return [key for key in found if key]


def _accepted(admin: AdminClient, stored: Sequence[str]) -> str:
    """Returns the key among these that the router accepts; one of another service is not sent to
    it."""
    ours = (key for key in stored if key.startswith(KEY_PREFIX))
    return next((key for key in ours if admin.accepts(key)), "")


def _save(change: FileChange, keys: Sequence[str]) -> None:
    if not change.is_needed:
        console.print_line(f"{change.path} has these settings already.")
        return
    kept = save(change, private=keys[0] in change.after)
    console.print_line(f"{change.path}:" if kept else f"{change.path}, a new file:")
    for line in change.diff():
        console.print_line(f"  {_masked(line, keys)}", _style(line))
    if kept is not None:
        console.print_line(f"What was there is in {kept.name}.", "dim")


def _masked(line: str, keys: Sequence[str]) -> str:
    for key in keys:
        line = line.replace(key, f"{key[:_SHOWN_CHARS]}…")
    return line


def _style(line: str) -> str:
    return {"+": "green", "-": "red"}.get(line[:1], "dim")
