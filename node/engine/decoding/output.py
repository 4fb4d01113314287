"""Turns a row's tokens into text without incomplete characters, and the text into parts."""

from node.engine.model.detokenizer import AddedToken, Vocabulary
from node.engine.sampling.logprobs import LogprobBuffer, TopLogprobs, token_logprob
from node.ipc.generate import GenerateRequest
from node.ipc.messages import Part
from node.parsing.output_parser import OutputParser


class OutputReader:
    """Reads the tokens of one row."""

    def __init__(self, vocabulary: Vocabulary, request: GenerateRequest) -> None:
        """Raises `KeyError` for an output format that is not known."""
        self.reasoning_tokens = 0
        """Number of tokens that were reasoning or its markers."""
        self._added = vocabulary.added
        self._detokenizer = vocabulary.open(request.tokens)
        texts = vocabulary.added_texts
        self.parser = OutputParser(request.output, request.stops, texts, request.uid)
        """Parser of the row's text; only the reader feeds it."""
        self._stop_tokens = self.parser.stop_tokens
        self._stopped = False
        self._spell = vocabulary.spelled
        self._logprobs = request.logprobs
        self._waiting = LogprobBuffer()
        self._thinking_tokens = request.thinking_tokens

    @property
    def reasoning_overflow_tokens(self) -> int:
        """Number of `reasoning_tokens` beyond the thinking budget."""
        budget = self._thinking_tokens
        return 0 if budget is None else max(0, self.reasoning_tokens - budget)

    @property
    def ended(self) -> bool:
        """True if the tokens read so far end the row."""
        return self._stopped or self.parser.ended

    @property
    def has_partial_utf8(self) -> bool:
        """True if the last token left a character incomplete."""
        return self._detokenizer.has_partial_utf8

    def read(self, token: int, logprobs: TopLogprobs | None = None) -> list[Part]:
        """Reads one more token and returns the parts that it completes. `logprobs` are its log
        probabilities, if the request asks for them."""
        parser = self.parser
        reasons = parser.in_reasoning
        added = self._added.get(token)
        if logprobs is not None and not reasons and not self._is_stop(added):
            self._waiting.add(token_logprob(self._spell, token, logprobs, self._logprobs or 0))
        if added is None:
            parts = parser.feed(self._detokenizer.step(token))
        else:
            parts = self._read_added(token, added)
        self.reasoning_tokens += reasons
        return self._logged(parts)

    def end(self, token: int | None = None, *, is_cut: bool = False) -> list[Part]:
        """Returns the buffered parts at the end of the row. `token` is the end token, if one came;
        `is_cut` is True if the output was cut off before the model ended it."""
        added = None if token is None else self._added.get(token)
        return self._logged(self._end(added, is_cut=is_cut))

    def _logged(self, parts: list[Part]) -> list[Part]:
        return parts if self._logprobs is None else self._waiting.attach(parts)

    def _end(self, added: AddedToken | None, *, is_cut: bool = False) -> list[Part]:
        parser = self.parser
        parts = parser.feed(self._detokenizer.flush())
        if added is not None and self._is_stop(added):
            parts += parser.feed_token(added.text, special=True)
        return parts + parser.finish(is_cut=is_cut)

    def _is_stop(self, added: AddedToken | None) -> bool:
        """True if the added token ends the row and is part of the output format."""
        return added is not None and added.text in self._stop_tokens

    def _read_added(self, token: int, added: AddedToken) -> list[Part]:
        # An incomplete character cannot be completed any more, and comes before the token.
        parser, partial = self.parser, self._detokenizer.flush()
        parts = parser.feed(partial) if partial else []
        text = self._detokenizer.step(token)
        if added.special:
            parts += parser.feed_token(added.text, special=True)
            if self._is_stop(added):
                self._stopped = True
                parts += self._end(None)
            return parts
        before = text.removesuffix(added.text)
        if before:
            parts += parser.feed(before)
        return parts + parser.feed_token(text[len(before) :], special=False)
