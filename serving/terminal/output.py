"""Makes text safe for a terminal or a log, whatever its source: it moves no cursor, sets no
colors, hides nothing and starts no line of its own."""

import re
import sys

MOST_CHARS = 10_000
"""Most characters of one text; nobody reads more."""

_BAD = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters: escape sequences begin with one of these
    "\xad\u200b\u2060-\u2064\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible characters
    "\u2028\u2029"  # other line ends
    "\u202a-\u202e\u2066-\u2069"  # changes of the direction of text
    "\ud800-\udfff"  # halves of characters, which no stream accepts
)
_IN_LINE = re.compile(f"[\t\n{_BAD}]")
_IN_LINES = re.compile(f"[{_BAD}]")
_NAMES = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def shown(text: str) -> str:
    """The text as one line, with its bad characters escaped as in Python."""
    if len(text) > MOST_CHARS:
        text = text[: MOST_CHARS - 1] + "…"
    return text if text.isprintable() else _IN_LINE.sub(_spelled, text)


def shown_lines(text: str) -> str:
    """The text with its line ends, and its bad characters escaped."""
    return text if text.isprintable() else _IN_LINES.sub(_spelled, text)


def shown_json(text: str) -> str:
    """JSON with its bad characters escaped as in JSON, so that its value stays the same."""
    return text if text.isprintable() else _IN_LINES.sub(_json_spelled, text)


def put(text: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Prints lines, which may contain text of any source, and flushes."""
    print(shown_lines(text), end=end, file=sys.stderr if err else sys.stdout, flush=True)


def put_json(text: str) -> None:
    print(shown_json(text), flush=True)


def _spelled(found: re.Match[str]) -> str:
    char = found[0]
    code = ord(char)
    if code < 0x100:
        return _NAMES.get(char) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
