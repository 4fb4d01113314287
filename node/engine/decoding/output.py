"""What one row's tokens say: text without torn characters, taken apart into parts."""

from node.engine.model.detokenizer import AddedToken, Vocabulary
from node.engine.sampling.logprobs import Likely, Waiting, spelled
from node.ipc.generate import GenerateRequest
from node.ipc.messages import Part
from node.parsing.machine import TextMachine


class OutputReader:
    """Reads the tokens of one row."""

    def __init__(self, vocabulary: Vocabulary, request: GenerateRequest) -> None:
        """Raises `KeyError` for an output format that is not known."""
        self.reasoning_tokens = 0
        """How many of the tokens were reasoning, or marked it."""
        self._added = vocabulary.added
        self._detokenizer = vocabulary.open(request.tokens)
        texts = vocabulary.added_texts
        self._machine = TextMachine(request.output, request.stops, texts, request.uid)
        self._stop_tokens = self._machine.stop_tokens
        self._stopped = False
        self._spell = vocabulary.spelled
        self._logprobs = request.logprobs
        self._waiting = Waiting()
        self._thinking_tokens = request.thinking_tokens

    @property
    def reasoning_overflow_tokens(self) -> int:
        """How many of `reasoning_tokens` are beyond the budget."""
        budget = self._thinking_tokens
        return 0 if budget is None else max(0, self.reasoning_tokens - budget)

    @property
    def ended(self) -> bool:
        """Whether what was read ends the row."""
        return self._stopped or self._machine.ended

    @property
    def error(self) -> str | None:
        """Why the output cannot be told to its end, a sentence; it has `ended` then."""
        return self._machine.error

    @property
    def stop(self) -> str | None:
        """The stop string that ended it."""
        return self._machine.stop

    @property
    def in_reasoning(self) -> bool:
        """Whether the next token is reasoning, or ends it."""
        return self._machine.in_reasoning

    @property
    def is_torn(self) -> bool:
        """Whether the last token left a character incomplete."""
        return self._detokenizer.is_torn

    def read(self, token: int, likely: Likely | None = None) -> list[Part]:
        """What one more token brings; `likely` is told with it, if log probabilities are asked
        for."""
        machine = self._machine
        reasons = machine.in_reasoning
        added = self._added.get(token)
        if likely is not None and not reasons and not self._is_stop(added):
            self._waiting.add(spelled(self._spell, token, likely, self._logprobs or 0))
        if added is None:
            parts = machine.feed(self._detokenizer.step(token))
        else:
            parts = self._read_added(token, added)
        self.reasoning_tokens += reasons
        return self._logged(parts)

    @property
    def block_begin(self) -> int | None:
        """Where what has come of a call begins that is being read, in characters of the output;
        None where there is no call."""
        return self._machine.block_begin

    @property
    def block_text(self) -> str:
        """What has come of it; to be asked once for each, since it is put together."""
        return self._machine.block_text

    def end_block(self) -> None:
        """What comes from here on is no part of a call that is being read."""
        self._machine.end_block()

    def end(self, token: int | None = None, *, is_cut: bool = False) -> list[Part]:
        """What was held back, at the end of the row; `token` is the one that ends it. `is_cut`: the
        model would have gone on."""
        added = None if token is None else self._added.get(token)
        return self._logged(self._end(added, is_cut=is_cut))

    def _logged(self, parts: list[Part]) -> list[Part]:
        return parts if self._logprobs is None else self._waiting.attach(parts)

    def _end(self, added: AddedToken | None, *, is_cut: bool = False) -> list[Part]:
        machine = self._machine
        parts = machine.feed(self._detokenizer.flush())
        if added is not None and self._is_stop(added):
            parts += machine.feed_token(added.text, special=True)
        return parts + machine.finish(is_cut=is_cut)

    def _is_stop(self, added: AddedToken | None) -> bool:
        """Whether the token ends the row, and yet is to be read."""
        return added is not None and added.text in self._stop_tokens

    def _read_added(self, token: int, added: AddedToken) -> list[Part]:
        # A character that is torn here stays so, and comes before the token.
        machine, torn = self._machine, self._detokenizer.flush()
        parts = machine.feed(torn) if torn else []
        text = self._detokenizer.step(token)
        if added.special:
            parts += machine.feed_token(added.text, special=True)
            if self._is_stop(added):
                self._stopped = True
                parts += self._end(None)
            return parts
        before = text.removesuffix(added.text)
        if before:
            parts += machine.feed(before)
        return parts + machine.feed_token(text[len(before) :], special=False)
