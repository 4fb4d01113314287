"""Response headers that name what was left out of a request."""

from collections.abc import Sequence

from node.protocol.headers import HEADER_IGNORED
from node.request import LeftOut
from node.server.stream import Headers

MOST_NAMED = 16
"""Most items that a header names; further ones become `...`."""
_LONGEST_KIND = 64


def left_out_headers(left_out: Sequence[LeftOut]) -> Headers:
    """Returns the headers; empty if nothing was left out."""
    if not left_out:
        return []
    names = ",".join(_named([each.path for each in left_out]))
    return [
        (HEADER_IGNORED.encode(), names.encode()),
        # RFC 7234, 5.5: the code 299 (a persistent warning), the agent, and the text.
        (b"warning", f'299 mlx-fleet "{sentence(left_out)}"'.encode()),
    ]


def sentence(left_out: Sequence[LeftOut]) -> str:
    """Returns a sentence for headers and logs: ASCII without quotes and control characters."""
    shown = _named([f"{each.path} ({_plain(each.kind)})" for each in left_out])
    return f"Left out, since only a host could run it: {', '.join(shown)}"


def _named(texts: list[str]) -> list[str]:
    return texts if len(texts) <= MOST_NAMED else [*texts[:MOST_NAMED], "..."]


def _plain(kind: str) -> str:
    kept = "".join(char for char in kind if char.isascii() and char.isprintable())
    return kept.replace('"', "").replace("\\", "")[:_LONGEST_KIND]
