"""Compiles grammars and follows them token by token, with llguidance.

A compiler belongs to a model. Its thread first prepares the vocabulary, which takes up to a second
and starts soon after the load or with the first grammar. Then it compiles one grammar after
another; most take a few milliseconds, during which other threads go on.
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
from node.parsing.constraints.schema import UnsupportedConstraint

MAX_GRAMMAR_LENGTH = 320 << 10
"""Most characters of a grammar: enough for the longest schema, which compiles within about half a
second."""
_KEPT_GRAMMARS = 64
"""Number of compiled grammars that are cached, so that a repeated schema costs nothing."""
_LIMITS = LLParserLimits(
    # A state takes up to 2 kB.
    max_lexer_states=50_000,
    verbose_errors=False,
)
_OWN, _CLIENTS = "answer", "client"
CLIENT_START = f"@{_CLIENTS}"
"""Reference in our grammar to the client's, which has its own namespace."""
_NO_FORCING = '\n%llguidance {"no_forcing": true}\n'
"""Option of a grammar. Without it, the text of an added token in a grammar would be forced as that
token, which is no text. It comes last, since the last such line counts."""
_QUIET_S = 5.0
"""Seconds after a load before the vocabulary is prepared, since that would slow down, in the same
interpreter, the request that the model was loaded for."""
_SWITCH_S = 0.001
"""Seconds after which a thread has to release the interpreter to another one."""
_TOO_LARGE = re.compile(r"panic: |too big")
"""The library's errors for grammars that are too large for its tables."""
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
"""Line and column at the begin of the library's message."""
_EMPTY, _NOTHING = "NoExtensionBias", "nothing matches it"
"""The library's error for a grammar that matches no text, and its translation."""
_LONGEST_REASON = 300
"""Most characters of the library's message that a refusal repeats."""

T = TypeVar("T")


class TooLarge(UnsupportedConstraint):
    """A grammar is too large to be compiled."""


class GrammarFailed(Exception):
    """A row's grammar cannot be followed any further; the message is a sentence."""


class Matcher:
    """The state of one output in its grammar."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._words = mask_words(vocab_size)

    def mask(self) -> Mask:
        """Returns the tokens that may come next, which include end tokens if the grammar may end.
        Raises `GrammarFailed`."""
        octets = self._matcher.compute_bitmask()
        self._check()
        mask = np.frombuffer(octets, dtype="<u4")[: self._words].astype(np.uint32, copy=False)
        if not mask.any():
            raise GrammarFailed("The answer's grammar allows no token of the model.")
        return mask

    def consume(self, token: int) -> None:
        """Advances by a token that the mask allows. Raises `GrammarFailed`."""
        self._matcher.consume_token(token)
        self._check()

    def consume_all(self, tokens: Collection[int]) -> bool:
        """Advances by these tokens. Returns False if the grammar does not allow them."""
        return self._matcher.consume_tokens(list(tokens))

    @property
    def is_accepting(self) -> bool:
        """True if the output may end here."""
        return self._matcher.is_accepting()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = _sentence(self._matcher.get_error(), with_place=False)
            raise GrammarFailed(f"The answer's grammar cannot be followed: {reason}.")


class Grammar:
    """A compiled grammar, shared by outputs that each follow it with their own matcher."""

    def __init__(self, start: LLMatcher, vocab_size: int) -> None:
        self._start = start
        self._vocab_size = vocab_size

    def open(self) -> Matcher:
        """Returns a matcher at the begin of the grammar."""
        return Matcher(self._start.deep_copy(), self._vocab_size)


class Compiler:
    """Compiles grammars for one vocabulary. Jobs run in its thread; `compile` and `tokens_beyond`
    must be called there, too."""

    def __init__(
        self, vocabulary: Vocabulary, vocab_size: int, end_tokens: Collection[int]
    ) -> None:
        """`vocab_size` is the width of the logits."""
        # The engine's thread shares the interpreter with this one and must not wait long for it.
        sys.setswitchinterval(min(_SWITCH_S, sys.getswitchinterval()))
        self._vocab_size = vocab_size
        self._end_tokens = sorted(end_tokens)
        self._compiled: OrderedDict[str, Grammar] = OrderedDict()
        self._is_needed = threading.Event()
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "grammar")
        self._tokenizer = self._thread.submit(self._prepare, vocabulary)
        self.tokens_beyond = lru_cache(maxsize=16)(self._tokens_beyond)
        """Returns the tokens that contain the character and more text after it."""

    def submit(self, job: Callable[[], T]) -> "Future[T]":
        """Runs the job in the thread."""
        self._is_needed.set()
        return self._thread.submit(job)

    def compile(self, grammar: str, param: str, client: str | None = None) -> Grammar:
        """Compiles a grammar in llguidance's dialect of Lark. `client` is the client's grammar, to
        which it refers as `CLIENT_START`. Raises `UnsupportedConstraint` with `param`; if the
        grammar is too large, `TooLarge`."""
        grammar = _joined(grammar, client)
        known = self._compiled.get(grammar)
        if known is not None:
            self._compiled.move_to_end(grammar)
            return known
        matcher = self._start(grammar, param, client)
        self._compiled[grammar] = made = Grammar(matcher, self._vocab_size)
        if len(self._compiled) > _KEPT_GRAMMARS:
            self._compiled.popitem(last=False)
        return made

    def _start(self, grammar: str, param: str, client: str | None) -> LLMatcher:
        """Returns a matcher at the begin of a grammar. Raises `UnsupportedConstraint` if it is
        invalid, too complex or matches no text."""
        if len(grammar) > MAX_GRAMMAR_LENGTH:
            raise _too_large(param)
        if not self._end_tokens:
            raise UnsupportedConstraint(
                f"{param} cannot be enforced: the model has no end token.", param
            )
        matcher = LLMatcher(self._tokenizer_for(param), grammar, log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            # This detects grammars that are too complex, and makes the following masks quicker.
            matcher.compute_bitmask()
        if matcher.is_error():
            error = matcher.get_error()
            if _TOO_LARGE.search(error.partition("\n")[0]):
                raise _too_large(param)
            reason = _sentence(error, with_place=client is not None)
            raise UnsupportedConstraint(f"{param} cannot be enforced: {reason}.", param)
        if client is not None and not can_end(client):
            raise UnsupportedConstraint(f"{param} cannot be enforced: {_NOTHING}.", param)
        return matcher

    def close(self) -> None:
        """Cancels all jobs that have not begun; the result of a running one is not used."""
        self._closed = True
        self._is_needed.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, vocabulary: Vocabulary) -> LLTokenizer:
        self._is_needed.wait(_QUIET_S)
        if self._closed:
            raise RuntimeError("The compiler has been closed.")
        return LLTokenizer(
            vocabulary.tokenizer_json(),
            n_vocab=max(self._vocab_size, vocabulary.size),
            eos_token=self._end_tokens or None,
        )

    def _tokenizer_for(self, param: str) -> LLTokenizer:
        try:
            return self._tokenizer.result()
        except ValueError as error:
            reason = _sentence(str(error), with_place=False)
            raise UnsupportedConstraint(
                f"{param} cannot be enforced: the model's vocabulary has no known form ({reason}).",
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


def _joined(grammar: str, client: str | None) -> str:
    """Returns the text of a single grammar, or the library's JSON of both."""
    if client is None:
        return grammar + _NO_FORCING
    texts = {_OWN: grammar, _CLIENTS: client}
    parts = [{"name": name, "lark_grammar": text + _NO_FORCING} for name, text in texts.items()]
    return json.dumps({"grammars": parts})


def _too_large(param: str) -> TooLarge:
    return TooLarge(f"{param} makes a grammar that is too large.", param)


def _sentence(error: str, *, with_place: bool) -> str:
    """Returns the library's message on one line, without its copy of the grammar."""
    if error.startswith(_EMPTY):
        return _NOTHING
    first, *rest = error.strip().splitlines() or ["it is not known why"]
    place = _PLACE.match(first)
    reason = _PLACE.sub("", first).removeprefix("failed to compile JSON schema: ")
    named = [line.removeprefix("error: ") for line in rest if line.startswith("error: ")]
    if named:
        # For a regular expression the reason follows after a copy of it.
        reason = f"{named[0]}, in a regular expression"
    if place is not None and with_place:
        reason = f"line {place[1]}, column {place[2]}: {reason}"
    return reason.strip().rstrip(".:")[:_LONGEST_REASON]
