"""Changes template programs so that a message is rendered the same however many follow it.

A longer chat's prompt then begins with the shorter one's, whose keys and values are cached. Each
change targets one construct that templates of several families share, and nothing else.
"""

import re
from collections.abc import Callable

EMPTY_REASONING = "spells_empty_reasoning"
"""Variable of changed programs. True: a response without reasoning is rendered with the empty
markers that the prompt itself closes when thinking is off."""

_LOOPS = re.compile(
    r"\{%[-+]?\s*for\s+(?P<name>[\w, ]+?)\s+in\s+(?P<items>.*?)\s*[-+]?%\}"
    r"|\{%[-+]?\s*(?P<end>endfor)\s*[-+]?%\}"
    r"|(?P<condition>loop\.index0 > (?>(?:\w+\.)?\w*last_(?:user|query)\w*(?:\.\w+)?)"
    r"|\b(?>(?:preserve|preserved)_thinking(?: is true)?))(?=\s*(?:\)|and\b|or\b|[-+]?%\}))"
)
"""Matches the beginning and end of loops, and conditions that test, as a whole operand, whether the
loop is behind the last user message or all reasoning is kept."""
_WHOLE_OPERAND = re.compile(r"(?:\(|\b(?:el)?if|\band|\bor|\bnot|(?<![=!<>])=)\s*\Z")
"""Matches the text before a whole operand."""
_MESSAGES = re.compile(r"\w*messages\w*")
_TOOLS_AT_LAST_USER = re.compile(
    r"(\{%[-+]?\s*(?:el)?if [^%{}]*\btools\b[^%{}]*==\s*\w*user\w*)\[-1\]"
)
_CLOCK = re.compile(r"(strftime_now\(\s*)(['\"])(.*?)\2")
_TIME = re.compile(
    r"[\sT,]*%[-#]?[HIMSfpXTRrsZz](?:[\s:.]*%[-#]?[HIMSfpXTRrsZz])*(?:\s*(?:Z|UTC|GMT)(?!\w))?"
)
_OPEN_BEFORE = re.compile(r"(?:(?:\A|[\s,])[^\W\d]+|[(\[{<|])[\s,]*\Z")
_OPEN_BEHIND = re.compile(r"\s*[^\W\d]|\s*[)\]}>|]")
"""Matches a word or a bracket that belongs to the time."""


def stabilized(program: str, is_harmless: Callable[[str, str], bool] | None = None) -> str:
    """Returns the program with stable positions of reasoning and tools, and with the day instead of
    the time. `is_harmless(program, changed)` returns True if the changed program may replace the
    other; a change that may not is skipped."""
    for change in (_with_steady_answers, _with_tools_at_first_user, _with_the_day_only):
        changed = change(program)
        if changed != program and (is_harmless is None or is_harmless(program, changed)):
            program = changed
    return program


def _with_steady_answers(program: str) -> str:
    """Makes the rendering of a response's reasoning independent of later user messages.

    Many programs show the reasoning of responses behind the last user message only, and some show
    its markers there even if there is none, so that the next user message changes earlier text. So
    do programs with a variable to keep all reasoning, once it is set. A response without reasoning
    is rendered as if it were before the last user message, or, under `EMPTY_REASONING`, as if it
    were behind it. A response that ends the chat, and messages of other roles, stay as they are.
    """

    open_loops: list[str] = []
    """The message variable of each open loop; empty for a loop over something else."""

    def is_operand(begin: int) -> bool:
        return _WHOLE_OPERAND.search(program, max(0, begin - 40), begin) is not None

    def change(match: re.Match[str]) -> str:
        if match["end"]:
            del open_loops[-1:]
        elif match["name"]:
            is_of_messages = _MESSAGES.fullmatch(match["items"]) and match["name"].isidentifier()
            open_loops.append(match["name"] if is_of_messages else "")
        elif open_loops and open_loops[-1] and is_operand(match.start()):
            return _tests_reasoning(match[0], open_loops[-1])
        return match[0]

    return _LOOPS.sub(change, program)


def _tests_reasoning(condition: str, message: str) -> str:
    fields = f"{message}.reasoning_content or {message}.reasoning or {message}.thinking"
    # Reasoning may also be in the content, where the program handles it.
    inside = f"'think>' in ({message}.content or '') | string"
    other = f"{message}.role != 'assistant'"
    return f"(({condition}) if loop.last or {other} or {fields} or {inside} else {EMPTY_REASONING})"


def _with_tools_at_first_user(program: str) -> str:
    """Puts the tools before the first user message, in programs that put them before the last: each
    new message would move them."""
    return _TOOLS_AT_LAST_USER.sub(r"\1[0]", program)


def _with_the_day_only(program: str) -> str:
    """Removes the time of day in programs that write it at the beginning of the prompt, which would
    make every prompt different. A format that spells the time with words of its own stays as it
    is."""

    def change(match: re.Match[str]) -> str:
        call, quote, form = match.groups()
        form = form.replace("%c", "%a %b %d %Y")
        for time in _TIME.finditer(form):
            before, behind = form[: time.start()], form[time.end() :]
            if _OPEN_BEFORE.search(before) or _OPEN_BEHIND.match(behind):
                return match[0]
        return f"{call}{quote}{_TIME.sub('', form).strip(' ,')}{quote}"

    return _CLOCK.sub(change, program)
