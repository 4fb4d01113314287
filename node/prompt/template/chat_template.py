"""A chat template: a program by the model's author that renders messages as one text.

It is rendered as the transformers library does it, in a sandbox, and without a tokenizer.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from node.errors import BadRequest
from node.prompt.template.rewrite_check import Render, Tools, keeps_words
from node.prompt.template.stable_history import EMPTY_REASONING, stabilized

Turn = dict[str, Any]
"""A message as a template gets it."""

_LOOK_BACK = "in range(loop.index0 - 1, -1, -1)"
_FOUND = re.compile(
    r"\{%-? *set (\w+)\.found = true *-?%\}"
    r"(?=(?:\s*\{%-? *endif *-?%\})+\s*\{%-? *endfor *-?%\})"
)
"""Matches the assignment only where nothing else is left to do in the iteration."""


class ChatTemplate:
    """One template and the variables that it needs besides messages. Safe to use from several
    threads."""

    def __init__(self, text: str, specials: Mapping[str, str], *, normalize: bool = True) -> None:
        """`specials`: texts of special tokens by role, such as `bos_token`. `normalize`: True to
        render a message the same however many follow it (`node.prompt.template.stable_history`),
        unless that would lose a word; False to render as the author's program does. Slow: some 10
        ms if the program is changed."""
        self.text = text
        self.normalize = normalize
        self._program = with_loop_breaks(text)
        self._known: dict[str, Any] = dict(specials)
        if normalize:
            self._known[EMPTY_REASONING] = False
        import_transformers()
        from transformers.utils import chat_template_utils

        self._library: Any = chat_template_utils
        # Variables of templates that are older than the current convention.
        self._wants_functions = self.mentions("functions")
        self._wants_datetime = self.mentions("datetime")
        if normalize:
            self._program = stabilized(self._program, self._is_harmless)

    @property
    def asks_empty_reasoning(self) -> bool:
        """True if `EMPTY_REASONING` changes the text."""
        return self.normalize and EMPTY_REASONING in self._program

    def mentions(self, name: str) -> bool:
        """True if the word is anywhere in the template."""
        return re.search(rf"\b{re.escape(name)}\b", self.text) is not None

    def render(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        *,
        generation: bool,
    ) -> str:
        """Returns the text of the turns; with `generation`, the text that opens a response is
        behind it. Raises `BadRequest` if the template refuses them."""
        return self._run(self._program, turns, tools, variables, generation=generation)

    def _is_harmless(self, program: str, changed: str) -> bool:
        def rendering(text: str) -> Render:
            def render(
                turns: Sequence[Turn], tools: Tools, variables: Mapping[str, Any]
            ) -> str | None:
                generation = turns[-1]["role"] != "assistant"
                try:
                    return self._run(text, turns, tools, variables, generation=generation)
                except BadRequest:
                    return None

            return render

        return keeps_words(rendering(program), rendering(changed))

    def _run(
        self,
        program: str,
        turns: Sequence[Turn],
        tools: Tools,
        variables: Mapping[str, Any],
        *,
        generation: bool,
    ) -> str:
        """Returns the text that the program renders. Raises `BadRequest`."""
        known = dict(self._known)
        if self._wants_functions:
            known["functions"] = json.dumps([each["function"] for each in tools or ()], indent=2)
        if self._wants_datetime:
            # Only the day: the time would make each prompt differ from earlier ones.
            known["datetime"] = datetime.now().astimezone().strftime("%B %d, %Y")
        known.update(variables)
        try:
            texts, _ = self._library.render_jinja_template(
                conversations=[list(turns)],
                tools=None if tools is None else list(tools),
                chat_template=program,
                add_generation_prompt=generation,
                **known,
            )
        # A template may raise whatever a program can.
        except Exception as exc:
            raise BadRequest(
                f"The model's chat template does not support these messages: {exc}",
                param="messages",
            ) from exc
        text: str = texts[0]
        return text


def with_loop_breaks(text: str) -> str:
    """Returns the template with a `break` in loops that search for an earlier message and continue
    after they have found it: with those, a chat of 800 messages takes seconds to render."""
    if _LOOK_BACK not in text:
        return text

    def stop(match: re.Match[str]) -> str:
        # Behind such a guard the rest of the loop does nothing.
        return match[0] + ("{%- break -%}" if f"if not {match[1]}.found" in text else "")

    return _FOUND.sub(stop, text)


def import_transformers() -> Any:
    """Imports the library without the messages that it logs meanwhile."""
    # It takes a second to import, and the scripted engine does without it. The import sets the
    # level of its logger and warns that there is no PyTorch, which is intended.
    logger = logging.getLogger("transformers")
    logger.addFilter(_is_error)
    import transformers

    logger.removeFilter(_is_error)
    logger.setLevel(logging.ERROR)
    return transformers


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR
