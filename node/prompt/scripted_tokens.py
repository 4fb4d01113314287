"""Token ids without a tokenizer, for the scripted engine."""

import zlib

from node.parsing.selection import Formats
from node.prompt.prompt import Prompt, ids_prompt, within_context
from node.prompt.template.item_ends import bare_layout, whole_text_layout
from node.prompt.tokenize import TooManyTokens
from node.request import TextRequest

TOKEN_LENGTH = 4
"""Characters of a token."""


class ScriptedRenderer:
    """Makes token ids without a tokenizer: one for each 4 characters."""

    def __init__(self, formats: Formats | None = None) -> None:
        self._formats = formats or Formats()

    def render(self, request: TextRequest, context_tokens: int | None = None) -> Prompt:
        return within_context(self._make, request, context_tokens)

    def render_shared(self, request: TextRequest, context_tokens: int | None = None) -> Prompt:
        return self.render(request, context_tokens)

    def _make(self, request: TextRequest, most_tokens: int | None) -> Prompt:
        if isinstance(request.prompt, tuple):
            return ids_prompt(request.prompt)
        if request.messages is None:
            text = request.prompt or ""
            return Prompt(
                _tokens(text, most_tokens), layout=whole_text_layout(text, len(text), _quarter)
            )
        layout = bare_layout(request.messages, _quarter)
        # The next turn's text continues within the last token.
        tokens, reusable = _tokens(layout.text, most_tokens), _quarter(len(layout.text))
        return Prompt(tokens, (), reusable, formats=self._formats, layout=layout)


def _tokens(text: str, most_tokens: int | None) -> tuple[int, ...]:
    """Returns the token ids. Raises `TooManyTokens`."""
    count = len(range(0, len(text) or 1, TOKEN_LENGTH))
    if most_tokens is not None and count > most_tokens:
        raise TooManyTokens(count)
    data = text.encode("utf-32-le", "surrogatepass")
    return tuple(zlib.crc32(data[i : i + 16]) for i in range(0, len(data) or 1, 16))


def _quarter(length: int) -> int:
    return length // TOKEN_LENGTH
