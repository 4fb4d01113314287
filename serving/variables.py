"""Detects misspelt environment variables, which must not be ignored in silence."""

import difflib
from collections.abc import Collection, Iterable, Iterator

PREFIX = "MLX_FLEET_"
SHARED = ("MLX_FLEET_HOME", "MLX_FLEET_KEY")
"""Variables of all commands; each command adds its own."""
_SIMILARITY = 0.66
"""Similarity threshold. It allows for two swapped letters in a name like KEY."""


def misspelt(names: Iterable[str], known: Collection[str]) -> Iterator[str]:
    """Yields a sentence about each name that is unknown but close to a known one. Other names with
    the same prefix belong to other programs."""
    tails = [name.removeprefix(PREFIX) for name in (*SHARED, *known)]
    for name in sorted(names):
        tail = name.removeprefix(PREFIX)
        if not name.startswith(PREFIX) or tail in tails:
            continue
        if near := difflib.get_close_matches(tail, tails, n=1, cutoff=_SIMILARITY):
            yield f"{name} is not a setting; did you mean {PREFIX}{near[0]}?"
