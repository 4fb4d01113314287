"""`node-agent pair` and `unpair`: the running agent's code, and the routers paired with it."""

import sys
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from rich.table import Table

from node.commands.agent_client import CommandFailed, ask, find_server
from node.commands.pairing_lines import put_pairing
from node.protocol.pairing import (
    PATH_NEW_CODE,
    PATH_PAIRINGS,
    PATH_UNPAIR,
    NewCode,
    PairingList,
    Unpair,
)
from serving.terminal.output import put, put_json
from serving.terminal.screen import Screen


def pair(home: Path | None, *, as_json: bool) -> None:
    """Makes a new code and shows it. Raises `CommandFailed`."""
    if not as_json and not sys.stdout.isatty():
        raise CommandFailed(
            "A code is shown in a terminal only, since other output ends up in a file or a log "
            "(by ssh: `ssh -t`); --json prints it all the same, for a script that passes it on."
        )
    server = find_server(home, None, None)
    found = ask(server, PATH_NEW_CODE, NewCode)
    port = urlsplit(server.url).port or 0
    if as_json:
        put_json(msgspec.json.encode(found).decode())
        return
    put("To add this agent to a router, run there:")
    put_pairing(found.host, port, found.code)


def unpair(home: Path | None, router: str | None, *, all_of_them: bool, as_json: bool) -> None:
    """Removes the pairing of one router, or of all, and shows those that are left. Raises
    `CommandFailed`."""
    server = find_server(home, None, None)
    if router is None and not all_of_them:
        _show(ask(server, PATH_PAIRINGS, PairingList, method="GET"), as_json=as_json)
        return
    left = ask(server, PATH_UNPAIR, PairingList, Unpair(router))
    if not as_json:
        put(
            f"The pairing with {router or 'all routers'} has ended; responses that are open go on "
            "to their end."
        )
    _show(left, as_json=as_json)


def _show(found: PairingList, *, as_json: bool) -> None:
    if as_json:
        put_json(msgspec.json.encode(found.routers).decode())
        return
    if not found.routers:
        put("No router is paired with this agent; `node-agent pair` shows the code for one.")
        return
    table = Table("router", "paired", "id", box=None)
    for each in found.routers:
        day = datetime.fromtimestamp(each.paired_unix_s).strftime("%Y-%m-%d %H:%M")
        table.add_row(each.name, day, each.router_id)
    Screen(soft_wrap=True).print(table)
    put("`node-agent unpair ROUTER` ends the pairing with one of them.")
