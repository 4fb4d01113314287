"""Environment variables that are nearly ours: a misspelt one must not be ignored in silence."""

import difflib
from collections.abc import Collection, Iterable

PREFIX = "MLX_FLEET_"
SHARED = ("MLX_FLEET_HOME", "MLX_FLEET_KEY")
"""Those of all commands; each command's own settings come to them."""
_ALIKE = 0.66
"""Two letters of a name like KEY changed places."""


def misspelt(names: Iterable[str], known: Collection[str]) -> str:
    """A sentence about the first of the names that is not one of the known ones but close to one;
    empty where there is none. Names of others that begin alike are theirs."""
    tails = [name.removeprefix(PREFIX) for name in (*SHARED, *known)]
    for name in sorted(names):
        tail = name.removeprefix(PREFIX)
        if not name.startswith(PREFIX) or tail in tails:
            continue
        if near := difflib.get_close_matches(tail, tails, n=1, cutoff=_ALIKE):
            return f"{name} is not a setting; did you mean {PREFIX}{near[0]}?"
    return ""
