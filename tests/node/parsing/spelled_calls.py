"""Calls drawn from the grammars of formats, with texts that are hard to write, and what is read."""

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonschema
import numpy as np
from llguidance import LLMatcher

from node.generate import OutputFormat, ToolSchema
from node.parsing.registry import _TOOL_CALLS
from node.types import PartKind
from tests.node.parsing.drawing import END, Drawer, Piece, text_of

_WORDS = ("5", "xy", "None", "null", "true", '"a"', "\n", "\r\n", "'", "\\", " [1", "{", "é\u2028", "<b>")
_SUFFIX = re.compile(r'\[suffix=("[^\n]*")\]:')
_TRIES = 30


class Teaser(Drawer):
    """Draws outputs of a model that likes to say some words."""

    def __init__(self, markers: Sequence[str], words: Sequence[str]) -> None:
        super().__init__(markers)
        self._words = [*_WORDS, *words]

    def draw(self, grammar: str, seed: int, most: int = 1500) -> list[Piece] | None:
        source = random.Random(seed)
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        texts = {number: text for text, number in self.tokens.items()}
        pieces: list[Piece] = []
        wanted: list[int] = []
        closers = [json.loads(each) for each in _SUFFIX.findall(grammar)] or ["</", *self._words]
        while len(pieces) < most:
            allowed = _allowed(matcher)
            assert allowed, "the grammar leads nowhere"
            if not wanted and source.random() < 0.3:
                wanted = [*source.choice(source.choice((self._words, closers))).encode()]
            token = wanted.pop(0) if wanted else source.choice(allowed)
            if allowed[-1] >= 256 and source.random() < 0.3:
                token = source.choice([each for each in allowed if each >= 256])
            if token not in allowed:
                wanted = []
                token = _near(allowed, source)
            if token == self.tokens[END]:
                return pieces
            pieces.append((texts[token], True) if token >= 256 else (bytes([token]), False))
            assert matcher.consume_token(token), matcher.get_error()
        return None


def calls_of(drawer: Drawer, output: OutputFormat, pieces: Sequence[Piece]) -> list[Any]:
    """(name, arguments) of each call that is read. Fails where anything else is said."""
    calls: list[tuple[str, Any]] = []
    for part in drawer.parts(output, pieces):
        if part.kind is PartKind.TOOL_START:
            calls.append((part.name, None))
        elif part.kind is PartKind.TOOL_ARGS:
            calls[-1] = (calls[-1][0], json.loads(part.text))
        else:
            assert not part.text.strip(), text_of(pieces)
    return calls


def drawn_calls(
    form: str, tools: Mapping[str, Any], markers: Sequence[str] = (), *, parallel: bool = False
) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Texts of outputs, and the calls in them, which fit: parameters of the tools by name."""
    schemas = tuple(ToolSchema(name, parameters) for name, parameters in tools.items())
    output = OutputFormat("none", form, tools=schemas, parallel_calls=parallel, repeated_calls=True)
    reader = _TOOL_CALLS[form]
    drawer = Teaser(markers, (*reader.openers, *reader.orphans, *markers, *WORDS.get(form, ())))
    lark = drawer.lark()
    grammar = lark.grammar(reader.spell_calls(lark, schemas, parallel=parallel))
    assert not drawer.error(grammar), drawer.error(grammar)
    for seed in range(_TRIES):
        pieces = drawer.draw(grammar, seed)
        if pieces is None:
            continue
        calls = calls_of(drawer, output, pieces)
        assert calls, text_of(pieces)
        assert parallel or len(calls) == 1, text_of(pieces)
        for name, arguments in calls:
            try:
                jsonschema.validate(arguments, {**tools[name], "type": "object"})
            except jsonschema.ValidationError as exc:
                raise AssertionError(f"{exc.message}: {text_of(pieces)}") from None
            if "$ref" not in tools[name]:
                assert arguments.keys() <= tools[name].get("properties", arguments).keys()
        yield text_of(pieces), calls


WORDS: dict[str, tuple[str, ...]] = {}
"""What else the outputs of a format may hold that is hard to write."""


def _allowed(matcher: Any) -> list[int]:
    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    found: list[int] = np.nonzero(np.unpackbits(bits, bitorder="little"))[0].tolist()
    return found


def _near(allowed: Sequence[int], source: random.Random) -> int:
    """A marker, or a letter that ends something, rather than any."""
    likely = [each for each in allowed if each >= 256 or each in b'"}]>)\n<']
    return source.choice(likely if likely and source.random() < 0.6 else allowed)
