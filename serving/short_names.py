"""Short names of models: a part of a name stands for it as long as it fits no other. Pure."""

import re
from collections.abc import Callable, Iterable

LEAST_CHARS = 3
"""Fewer characters stand for nothing."""
MOST_CHARS = 200
_MOST_BEGINNINGS = 12
"""Beginnings of one name that are looked up; names with more parts have no more."""
_SHOWN = 6
"""Most names that an error lists."""
_LATEST = ":latest"
_PACKAGING = re.compile(
    r"\d+bit|(bf|fp|f)\d+|mxfp\d|nvfp\d|u?q\d(_\w+)*|iq\d(_\w+)*|dwq|awq|gptq|mlx|gguf"
)
"""A last part of a name that says how the weights are stored, not which they are."""


class ShortNames:
    """The short names of a set of names.

    In this order a name means: the name in another case; one without its owner (`OWNER/`); one
    without its packaging as well, such as `-4bit`; one that begins with it, up to a hyphen. The
    first of these that fits anything decides. A colon stands for a hyphen, and the tag `latest` for
    nothing, as in Ollama's names.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._by_form: list[dict[str, list[str]]] = [{} for _ in _FORMS]
        for name in sorted(names):
            for known, forms in zip(self._by_form, _FORMS, strict=True):
                for form in dict.fromkeys(forms(_plain(name))):
                    known.setdefault(form, []).append(name)

    def find(self, name: str) -> tuple[str, ...]:
        """The names that it may mean, sorted; empty if it fits none. It stands for a name if that
        is the only one."""
        if not LEAST_CHARS <= len(name) <= MOST_CHARS:
            return ()
        searched = _plain(name)
        found = (known[searched] for known in self._by_form if searched in known)
        return tuple(next(found, ()))


def ambiguous(name: str, names: tuple[str, ...]) -> str:
    """The sentence for a short name that fits several."""
    more = len(names) - _SHOWN
    listed = ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"The name {name!r} fits several models: {listed}. Give more of the name."


def _plain(name: str) -> str:
    return name.lower().removesuffix(_LATEST).replace(":", "-")


def _own(name: str) -> str:
    return name.rpartition("/")[2]


def _bare(name: str) -> str:
    """The name without its packaging; all of it if there is nothing else."""
    parts = name.split("-")
    while len(parts) > 1 and _PACKAGING.fullmatch(parts[-1]):
        parts.pop()
    return "-".join(parts)


def _beginnings(name: str) -> list[str]:
    parts = name.split("-")[:_MOST_BEGINNINGS]
    return ["-".join(parts[:count]) for count in range(1, len(parts) + 1)]


_FORMS: tuple[Callable[[str], list[str]], ...] = (
    lambda name: [name],
    lambda name: [_own(name)],
    lambda name: [_bare(name), _bare(_own(name))],
    lambda name: [*_beginnings(name), *_beginnings(_own(name))],
)
