"""Arguments of several verbs that are names, which a shell completes from the running router."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from router.errors import RouterError
from serving.errors import CannotStart

if TYPE_CHECKING:
    from router.commands.client import AdminClient

_PATIENCE_S = 1.0
"""Longest wait for a router, since a shell shows nothing meanwhile."""


def _completing(
    names: Callable[["AdminClient"], Iterable[str]],
) -> Callable[[typer.Context, str], list[str]]:
    """Completes a name from those of the router of the command line. A router that does not
    respond, or refuses the key, completes nothing: a message would land in the command line."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        from router.commands.client import hasty_client

        try:
            found = list(names(hasty_client(context.params.get("router"), _PATIENCE_S)))
        except (RouterError, CannotStart):
            return []
        return [name for name in found if name.startswith(incomplete)]

    return complete


def _models(client: "AdminClient") -> Iterable[str]:
    return (str(each["id"]) for each in client.models(""))


def _nodes(client: "AdminClient") -> Iterable[str]:
    return _named(client.get("/nodes"))


def _keys(client: "AdminClient") -> Iterable[str]:
    return _named(client.get("/keys"))


def _teams(client: "AdminClient") -> Iterable[str]:
    return _named(client.get("/teams"))


def _aliases(client: "AdminClient") -> Iterable[str]:
    return _named(client.get("/aliases"))


def _named(rows: list[dict[str, Any]]) -> Iterable[str]:
    return (str(row["name"]) for row in rows)


Model = Annotated[str, typer.Argument(autocompletion=_completing(_models))]
NodeName = Annotated[str, typer.Argument(autocompletion=_completing(_nodes))]
KeyName = Annotated[str, typer.Argument(autocompletion=_completing(_keys))]
TeamName = Annotated[str, typer.Argument(autocompletion=_completing(_teams))]
AliasName = Annotated[str, typer.Argument(autocompletion=_completing(_aliases))]
Node = Annotated[
    str | None,
    typer.Option(
        "--node", metavar="NAME", help="Only this node.", autocompletion=_completing(_nodes)
    ),
]
