"""Removes the code fence that models write around an answer in JSON."""

import re

_OPENER = re.compile(r"\s*```[a-zA-Z]*[ \t\r]*\n")
_MAY_OPEN = re.compile(r"\s*(?:`{0,2}|```[a-zA-Z]*[ \t\r]*)\Z")
"""Texts that may become the start of a fence."""
_TICKS = 3
_LONGEST_FENCE = 1024
"""Most characters of a possible fence that are buffered; a longer text is no fence."""
FENCES = ("```json\n", "\n```")
"""The start and the end of a fence as models write it."""


class Fence:
    """Removes the fence from an answer that comes in pieces. There is none unless it begins the
    answer and nothing but white space follows its end."""

    def __init__(self) -> None:
        self._buffered = ""
        self._has_begun = False
        self._is_fenced = False

    def skip(self) -> None:
        """Notes that the answer has begun, so no fence can begin it."""
        self._has_begun = True

    def feed(self, text: str) -> str:
        """Returns the part of the new and the buffered text that belongs to the answer."""
        text, self._buffered = self._buffered + text, ""
        if not self._has_begun:
            if len(text) <= _LONGEST_FENCE and _MAY_OPEN.match(text):
                self._buffered = text
                return ""
            self._has_begun = True
            if (opener := _OPENER.match(text)) is not None:
                self._is_fenced = True
                text = text[opener.end() :]
        if not self._is_fenced:
            return text
        end = _end_of(text)
        if len(text) - end > _LONGEST_FENCE:
            end = len(text)
        self._buffered = text[end:]
        return text[:end]

    def flush(self) -> str:
        """Returns the buffered text at the end of the answer."""
        buffered, self._buffered = self._buffered, ""
        is_closer = self._is_fenced and buffered.strip() == "`" * _TICKS
        return "" if is_closer else buffered


def _end_of(text: str) -> int:
    """Returns the end of the text without a possible end of the fence and the white space before
    it."""
    body = text.rstrip()
    ticks = len(body) - len(body.rstrip("`"))
    if ticks == _TICKS or (ticks < _TICKS and len(body) == len(text)):
        body = body[: len(body) - ticks].rstrip()
    return len(body)
