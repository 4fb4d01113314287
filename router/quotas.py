"""Limits of keys and teams, and to whom each applies."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """Limits of one key, or of all keys of a team together; None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    """Tokens in a calendar day, in UTC."""
    concurrent_requests: int | None = None
    """Requests that wait or run at the same time, streamed or not."""

    def stored(self) -> dict[str, int]:
        """The limits that are set, by name, as the registry keeps them."""
        every = msgspec.structs.asdict(self).items()
        return {name: value for name, value in every if value is not None}


LIMIT_NAMES = Limits.__struct_fields__


def read_limits(stored: Mapping[str, int]) -> Limits:
    """Reads what `Limits.stored` returned; a limit of a later version is left out."""
    return Limits(**{name: value for name, value in stored.items() if name in LIMIT_NAMES})


class Quota(NamedTuple):
    """The limits that apply to a request because of its key, or because of its key's team."""

    subject: str
    """The unique id of the key or team."""
    owner: str
    """The key or team, as the subject of a sentence."""
    limits: Limits
