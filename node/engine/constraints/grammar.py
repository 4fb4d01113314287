"""Grammars that hold an output, compiled and followed token by token, by llguidance.

A compiler belongs to a model. Its thread first prepares the vocabulary, which takes up to a second
and is begun soon after the load, or for the first grammar, and then compiles one grammar after
another; most take a few milliseconds, in which other threads go on.
"""

import json
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from node.engine.constraints.lark_check import can_end
from node.engine.model.detokenizer import Vocabulary
from node.engine.sampling.token_mask import Mask, mask_words
from node.parsing.constraints.schema import NotHeld

MAX_GRAMMAR_LENGTH = 320 << 10
"""Characters of a grammar: room for the longest schema. It compiles within about half a second."""
_KEPT_GRAMMARS = 64
"""How many are remembered, so that a schema that comes again costs nothing."""
_LIMITS = LLParserLimits(
    # A state takes up to 2 kB.
    max_lexer_states=50_000,
    verbose_errors=False,
)
_OWN, _CLIENTS = "answer", "client"
CLIENT_START = f"@{_CLIENTS}"
"""In our grammar: the client's, which has names of its own."""
_NO_FORCING = '\n%llguidance {"no_forcing": true}\n'
"""Texts of added tokens, where a grammar has them as text, would else be forced as these tokens,
which are no text. Last, since the last of such lines counts."""
_QUIET_S = 5.0
"""After a load, for the request that waits for it: it would share the interpreter."""
_SWITCH_S = 0.001
_TOO_MUCH = re.compile(r"panic: |too big")
"""What the library says of grammars that are too large for its tables."""
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
"""Line and column, before what is wrong there."""
_EMPTY, _NOTHING = "NoExtensionBias", "nothing matches it"
"""What the library says of a grammar without a text, and what that means."""
_LONGEST_REASON = 300
"""Characters of what the library says that are told on."""

T = TypeVar("T")


class TooLarge(NotHeld):
    """A grammar is too large to be compiled."""


class GrammarFailed(Exception):
    """A row cannot be held to its grammar any longer: a sentence."""


class Matcher:
    """How far an output has come in a grammar."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._words = mask_words(vocab_size)

    def mask(self) -> Mask:
        """Which tokens may come next; end tokens where the grammar is at an end. Raises
        `GrammarFailed`."""
        octets = self._matcher.compute_bitmask()
        self._check()
        mask = np.frombuffer(octets, dtype="<u4")[: self._words].astype(np.uint32, copy=False)
        if not mask.any():
            raise GrammarFailed("The answer's grammar allows no token of the model.")
        return mask

    def take(self, token: int) -> None:
        """Goes on with a token that the mask allows. Raises `GrammarFailed`."""
        self._matcher.consume_token(token)
        self._check()

    def take_all(self, tokens: Collection[int]) -> bool:
        """Goes on with these tokens; whether the grammar allows them."""
        return self._matcher.consume_tokens(list(tokens))

    @property
    def is_accepting(self) -> bool:
        """Whether the output may end here."""
        return self._matcher.is_accepting()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = _sentence(self._matcher.get_error(), with_place=False)
            raise GrammarFailed(f"The answer's grammar cannot be followed: {reason}.")


class Grammar:
    """A compiled grammar; outputs are held to it independently."""

    def __init__(self, start: LLMatcher, vocab_size: int) -> None:
        self._start = start
        self._vocab_size = vocab_size

    def open(self) -> Matcher:
        """At its begin."""
        return Matcher(self._start.deep_copy(), self._vocab_size)


class Compiler:
    """Compiles for one vocabulary. Jobs run in its thread, where `compile` and `tokens_beyond` are
    called too."""

    def __init__(
        self, vocabulary: Vocabulary, vocab_size: int, end_tokens: Collection[int]
    ) -> None:
        """`vocab_size` is the width of the logits."""
        # The engine's thread shares the interpreter with this one, which would keep it for longer.
        sys.setswitchinterval(min(_SWITCH_S, sys.getswitchinterval()))
        self._vocab_size = vocab_size
        self._end_tokens = sorted(end_tokens)
        self._known: OrderedDict[str, Grammar] = OrderedDict()
        self._wanted = threading.Event()
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "grammar")
        self._tokenizer = self._thread.submit(self._prepare, vocabulary)
        self.tokens_beyond = lru_cache(maxsize=16)(self._tokens_beyond)
        """Tokens that hold the character and go on behind it."""

    def submit(self, job: Callable[[], T]) -> "Future[T]":
        """Runs the job in the thread."""
        self._wanted.set()
        return self._thread.submit(job)

    def compile(self, grammar: str, param: str, client: str | None = None) -> Grammar:
        """Of a text of llguidance's dialect of Lark, and of the client's that it refers to as
        `CLIENT_START`. Raises `NotHeld` with `param`, `TooLarge` among them."""
        grammar = _whole(grammar, client)
        known = self._known.get(grammar)
        if known is not None:
            self._known.move_to_end(grammar)
            return known
        matcher = self._started(grammar, param, client)
        self._known[grammar] = made = Grammar(matcher, self._vocab_size)
        if len(self._known) > _KEPT_GRAMMARS:
            self._known.popitem(last=False)
        return made

    def _started(self, grammar: str, param: str, client: str | None) -> LLMatcher:
        """At the begin of a grammar that has a text. Raises `NotHeld`."""
        if len(grammar) > MAX_GRAMMAR_LENGTH:
            raise _too_large(param)
        if not self._end_tokens:
            raise NotHeld(f"{param} cannot be held: the model has no end token.", param)
        matcher = LLMatcher(self._ready(param), grammar, log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            # Tells of what is too complex too, and the next ones are quicker.
            matcher.compute_bitmask()
        if matcher.is_error():
            error = matcher.get_error()
            if _TOO_MUCH.search(error.partition("\n")[0]):
                raise _too_large(param)
            reason = _sentence(error, with_place=client is not None)
            raise NotHeld(f"{param} cannot be held: {reason}.", param)
        if client is not None and not can_end(client):
            raise NotHeld(f"{param} cannot be held: {_NOTHING}.", param)
        return matcher

    def close(self) -> None:
        """Begins nothing more; what the thread is at goes on, for no one."""
        self._closed = True
        self._wanted.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, vocabulary: Vocabulary) -> LLTokenizer:
        self._wanted.wait(_QUIET_S)
        if self._closed:
            raise RuntimeError("The compiler has been closed.")
        return LLTokenizer(
            vocabulary.tokenizer_json(),
            n_vocab=max(self._vocab_size, vocabulary.size),
            eos_token=self._end_tokens or None,
        )

    def _ready(self, param: str) -> LLTokenizer:
        try:
            return self._tokenizer.result()
        except ValueError as error:
            reason = _sentence(str(error), with_place=False)
            raise NotHeld(
                f"{param} cannot be held: the model's vocabulary is of no known kind ({reason}).",
                param,
            ) from error

    def _tokens_beyond(self, character: str) -> frozenset[int]:
        tokenizer, end = self._tokenizer.result(), character.encode()
        found = []
        for token in range(self._vocab_size):
            at = tokenizer.decode_bytes([token]).find(end)
            if at >= 0 and not tokenizer.is_special_token(token):
                found.append((token, at))
        return frozenset(
            token for token, at in found if len(tokenizer.decode_bytes([token])) > at + len(end)
        )


def _whole(grammar: str, client: str | None) -> str:
    """The text of a grammar, or the JSON of two."""
    if client is None:
        return grammar + _NO_FORCING
    texts = {_OWN: grammar, _CLIENTS: client}
    parts = [{"name": name, "lark_grammar": text + _NO_FORCING} for name, text in texts.items()]
    return json.dumps({"grammars": parts})


def _too_large(param: str) -> TooLarge:
    return TooLarge(f"{param} makes a grammar that is too large.", param)


def _sentence(error: str, *, with_place: bool) -> str:
    """What the library says, on one line and without its copy of the grammar."""
    if error.startswith(_EMPTY):
        return _NOTHING
    first, *rest = error.strip().splitlines() or ["it is not known why"]
    place = _PLACE.match(first)
    reason = _PLACE.sub("", first).removeprefix("failed to compile JSON schema: ")
    named = [line.removeprefix("error: ") for line in rest if line.startswith("error: ")]
    if named:
        # Of a regular expression: what is wrong comes behind a copy of it.
        reason = f"{named[0]}, in a regular expression"
    if place is not None and with_place:
        reason = f"line {place[1]}, column {place[2]}: {reason}"
    return reason.strip().rstrip(".:")[:_LONGEST_REASON]
