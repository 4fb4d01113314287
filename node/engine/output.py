"""What one row's tokens say: text without torn characters, taken apart into parts."""

from node.engine.detokenizer import AddedToken, Vocabulary
from node.generate import GenerateRequest
from node.parsing.machine import TextMachine
from node.types import Part


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

    @property
    def ended(self) -> bool:
        """Whether what was read ends the row."""
        return self._stopped or self._machine.ended

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

    def read(self, token: int) -> list[Part]:
        """What one more token brings."""
        machine = self._machine
        reasons = machine.in_reasoning
        added = self._added.get(token)
        if added is None:
            parts = machine.feed(self._detokenizer.step(token))
        else:
            parts = self._read_added(token, added)
        self.reasoning_tokens += reasons or machine.in_reasoning
        return parts

    def end(self, token: int | None = None) -> list[Part]:
        """What was held back, at the end of the row; `token` is the one that ends it."""
        machine = self._machine
        parts = machine.feed(self._detokenizer.flush())
        added = None if token is None else self._added.get(token)
        if added is not None and added.text in self._stop_tokens:
            parts += machine.feed_token(added.text, special=True)
        return parts + machine.finish()

    def _read_added(self, token: int, added: AddedToken) -> list[Part]:
        machine = self._machine
        text = self._detokenizer.step(token)
        if added.special:
            parts = machine.feed_token(added.text, special=True)
            if added.text in self._stop_tokens:
                self._stopped = True
                parts += self.end()
            return parts
        if text == added.text:
            return machine.feed_token(text, special=False)
        # Together with a character that was torn before it.
        return machine.feed(text)
