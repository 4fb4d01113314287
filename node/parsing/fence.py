"""The code fence that models write around an answer in JSON: it is no part of it."""

import re

_OPENER = re.compile(r"\s*```[a-zA-Z]*[ \t\r]*\n")
_MAY_OPEN = re.compile(r"\s*(?:`{0,2}|```[a-zA-Z]*[ \t\r]*)\Z")
"""What such a begin may begin with."""
_TICKS = 3
_HELD_LENGTH = 1024
"""Characters of what may be a fence; more are text."""
FENCES = ("```json\n", "\n```")
"""What a fence begins and ends with, as models write it."""


class Fence:
    """Takes it off an answer that comes in pieces. Where no fence begins the answer, or where text
    follows its end, there is none."""

    def __init__(self) -> None:
        self._held = ""
        self._has_begun = False
        self._is_fenced = False

    def pass_over(self) -> None:
        """The answer has begun already."""
        self._has_begun = True

    def feed(self, text: str) -> str:
        """What of the text, and of what was held, is the answer's."""
        text, self._held = self._held + text, ""
        if not self._has_begun:
            if len(text) <= _HELD_LENGTH and _MAY_OPEN.match(text):
                self._held = text
                return ""
            self._has_begun = True
            if (opener := _OPENER.match(text)) is not None:
                self._is_fenced = True
                text = text[opener.end() :]
        if not self._is_fenced:
            return text
        end = _end_of(text)
        if len(text) - end > _HELD_LENGTH:
            end = len(text)
        self._held = text[end:]
        return text[:end]

    def flush(self) -> str:
        """What was held, at the end of the answer."""
        held, self._held = self._held, ""
        is_closer = self._is_fenced and held.strip() == "`" * _TICKS
        return "" if is_closer else held


def _end_of(text: str) -> int:
    """Where the text ends less what a fence's end may begin with, and white space before that."""
    body = text.rstrip()
    ticks = len(body) - len(body.rstrip("`"))
    if ticks == _TICKS or (ticks < _TICKS and len(body) == len(text)):
        body = body[: len(body) - ticks].rstrip()
    return len(body)
