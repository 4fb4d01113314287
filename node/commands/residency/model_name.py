"""The model that a person means."""

from collections.abc import Iterable

from node.commands.agent_client import CommandFailed
from serving.short_names import ShortNames, ambiguous


def meant_name(name: str, names: Iterable[str]) -> str | None:
    """The one of the names that this one is, or is short for; None if it fits none. Raises
    `CommandFailed` if it fits several."""
    known = tuple(names)
    if name in known:
        return name
    found = ShortNames(known).find(name)
    if len(found) > 1:
        raise CommandFailed(ambiguous(name, found))
    return found[0] if found else None
