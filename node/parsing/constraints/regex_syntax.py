"""Translates patterns of ECMA-262 to the syntax of Rust's regex crate.

Readers of a schema disagree about some characters: `\\s` is one set in ECMA, another in Python and
another in Rust. The translation matches only what matches in all of them.
"""

import re

_DIGIT = r"\p{Nd}"
_WORD = r"\p{Alphabetic}\p{M}\p{N}\p{Pc}\u{200c}\u{200d}"
_SPACE = r"\p{White_Space}\x1c-\x1f\u{feff}"
_TAKEN = {
    "d": "0-9",
    "w": "0-9A-Za-z_",
    "s": r" \t\n\r\x0b\x0c",
    "D": f"[^{_DIGIT}]",
    "W": f"[^{_WORD}]",
    "S": f"[^{_SPACE}]",
}
"""Characters that are in a class by every reading."""
_LEFT_OUT = {
    "d": _DIGIT,
    "w": _WORD,
    "s": _SPACE,
    "D": "[^0-9]",
    "W": "[^0-9A-Za-z_]",
    "S": r"[^ \t\n\r\x0b\x0c]",
}
"""Characters that are in a class by some reading, for use in brackets that exclude."""
_ANY = r"[^\n\r\u2028\u2029]"
_LETTERS = frozenset("nrtf")
_PIECE = re.compile(
    r"(?P<escape>\\(?:u\{[0-9a-fA-F]{1,6}\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[pP]\{\w+\}|.))"
    r"|(?P<brackets>\[\^?)|(?P<group>\((?:\?<[A-Za-z_]\w*>|\??:?))|(?P<repeat>\{\d+(?:,\d*)?\})"
    r"|(?P<other>.)",
    re.DOTALL,
)
_NOTHING = re.compile(r"\\(?:x00|u0000|u\{0+\})")
_MOST_REPEATS = 2000


def search_pattern(pattern: str) -> str:
    """Returns a pattern that may match anywhere in a text, with its anchors. Raises `ValueError` if
    the other syntax cannot express it."""
    return _Translation(pattern, has_anchors=True).text


def inner_pattern(pattern: str) -> tuple[str, bool]:
    """Returns (a pattern without anchors, True if its top level is a choice). Raises
    `ValueError`."""
    done = _Translation(pattern, has_anchors=False)
    return done.text, done.has_choice


class _Translation:
    """One pass over a pattern."""

    def __init__(self, pattern: str, *, has_anchors: bool) -> None:
        self.has_choice = False
        self._has_anchors = has_anchors
        self._pieces: list[str] = []
        self._depth = 0
        self._brackets = ""
        """The start of the open brackets; "" outside of brackets."""
        self._ends_class = False
        """True if the previous piece, in brackets, stands for several characters."""
        for found in _PIECE.finditer(pattern):
            if self._brackets:
                self._in_class(found, pattern[found.end() : found.end() + 1])
            else:
                self._outside(found)
        if self._depth or self._brackets:
            raise ValueError(pattern)
        self.text = "".join(self._pieces)

    def _outside(self, found: "re.Match[str]") -> None:
        piece = found[0]
        if found["escape"]:
            translated = _TAKEN.get(piece[1:2], "")
            if not translated:
                translated = _escape(piece)
            elif piece[1] in "dws":
                translated = f"[{translated}]"
        elif found["brackets"]:
            self._brackets = piece
            # The grammar library confuses a class of all control characters with one of quotes.
            translated = r"[^\x00" if piece == "[^" else piece
        elif found["group"]:
            self._depth += 1
            translated = "(?:"
            if piece == "(?":
                raise ValueError(piece)
        else:
            translated = self._plain(piece, is_repeat=bool(found["repeat"]))
        self._pieces.append(translated)

    def _plain(self, piece: str, *, is_repeat: bool) -> str:
        if is_repeat and max(map(int, re.findall(r"\d+", piece))) > _MOST_REPEATS:
            raise ValueError(piece)
        if piece in ("^", "$") and not self._has_anchors:
            raise ValueError(piece)
        self._depth -= piece == ")"
        self.has_choice = self.has_choice or (piece == "|" and not self._depth)
        return {".": _ANY, "{": r"\{", "}": r"\}"}.get(piece, piece)

    def _in_class(self, found: "re.Match[str]", ahead: str) -> None:
        """Translates a piece within brackets, where the other syntax gives a meaning to more
        characters."""
        piece, before = found[0], self._pieces[-1]
        excludes = self._brackets == "[^"
        is_first = before in ("[", r"[^\x00")
        sets = _LEFT_OUT if excludes else _TAKEN
        several = ""
        if found["escape"]:
            several = piece if piece[1] in "pP" else sets.get(piece[1:2], "")
            if several and before == "-":
                self._pieces[-1] = r"\-"
            translated = several or _escape(piece)
            if not excludes and ahead == "-" and _NOTHING.fullmatch(piece):
                # For the same reason the range must not contain all control characters.
                translated = r"\x01"
        elif piece == "]":
            if is_first:
                raise ValueError(piece)
            self._brackets, translated = "", piece
        elif piece == before == "-":
            raise ValueError(piece)
        elif piece == "-" and (self._ends_class or is_first):
            translated = r"\-"
        else:
            translated = re.sub(r"[\[&~^]", lambda match: "\\" + match[0], piece)
        self._ends_class = bool(several)
        self._pieces.append(translated)


def _escape(piece: str) -> str:
    """Returns an escape of one character, or of a character property."""
    char = piece[1:2]
    if len(piece) > 2:
        return f"\\u{{{piece[2:]}}}" if char == "u" and piece[2] != "{" else piece
    if char == "v":
        return r"\x0b"
    if char.isalnum() and char not in _LETTERS:
        # Word boundaries and back-references.
        raise ValueError(piece)
    # Behind a backslash these have another meaning, or none.
    return char if char in "<>" or not char.isascii() else piece
