"""Which model a client gets, from what the fleet has. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from node.protocol.models import near_names
from router.commands.client import CommandFailed
from router.commands.connect.clients import CLIENTS, Client

_MOST_LISTED = 12


@dataclass(frozen=True, slots=True)
class Offer:
    """A model or an alias that the fleet offers."""

    name: str
    context_tokens: int | None


def client_named(name: str) -> Client:
    """Raises `CommandFailed` with near names."""
    if found := CLIENTS.get(name.lower()):
        return found
    near = near_names(name, CLIENTS)
    raise CommandFailed(
        f"There is no client {name!r}"
        + (f"; did you mean {near[0]}?" if near else ".")
        + f" Known: {', '.join(sorted(CLIENTS))}."
    )


def choose(
    client: Client, wanted: str | None, offers: Sequence[Offer], aliases: Iterable[str]
) -> Offer:
    """Returns the model for the client: the wanted one; else the alias with the client's name, or
    none by name if its own names are aliases; else the only one. Raises `CommandFailed`."""
    by_name = {each.name: each for each in offers}
    if wanted is not None:
        if wanted not in by_name:
            raise _unknown(wanted, list(by_name))
        return by_name[wanted]
    if client.name in by_name:
        return by_name[client.name]
    if client.alias and any(fnmatch.fnmatchcase(client.alias, each) for each in aliases):
        return Offer("", None)
    if len(offers) == 1:
        return offers[0]
    if not offers:
        raise CommandFailed("The fleet has no model yet; `router models pull MODEL` gets one.")
    raise CommandFailed(
        f"Which model? --model NAME, or once for all `router alias set {client.name} NAME`. "
        f"There are: {_listed(sorted(by_name))}."
    )


def _unknown(wanted: str, names: Sequence[str]) -> CommandFailed:
    near = near_names(wanted, names)
    hint = f"did you mean {near[0]}?" if near else f"there are: {_listed(sorted(names))}."
    return CommandFailed(f"The fleet has no model {wanted!r}; {hint if names else 'it has none.'}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more
