"""Calls drawn from the grammars of formats, with texts that are hard to write, and what is read."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator
from llguidance import LLMatcher

from node.ipc.generate import OutputFormat, ToolSchema
from node.ipc.messages import PartKind
from node.parsing.constraints.lark import Lark
from node.parsing.registry import layout_for
from tests.node.parsing.drawing import END, Drawer, Piece, text_of

_WORDS = (
    "5",
    "xy",
    "None",
    "null",
    "true",
    '"a"',
    "\n",
    "\r\n",
    "'",
    "\\",
    " [1",
    "{",
    "é\u2028",
    "<b>",
)
_SUFFIX = re.compile(r'\[suffix=("[^\n]*")\]:')

Tools = Mapping[str, dict[str, Any]]

TEXT: dict[str, Any] = {"type": "string"}
TOOLS: dict[str, Tools] = {
    "text": {
        "find": {
            "properties": {"where": TEXT, "short": {**TEXT, "maxLength": 12}, "more": TEXT},
            "required": ["where"],
        },
        "ping": {},
    },
    "simple": {
        "f": {
            "properties": {
                "i": {"type": "integer"},
                "n": {"type": "number"},
                "b": {"type": "boolean"},
                "z": {"type": "null"},
                "m": {"type": "integer", "minimum": 2, "maximum": 30},
                "h": {"type": ["number", "null"]},
            },
            "required": ["i", "m"],
        }
    },
    "listed": {
        "f": {
            "properties": {
                "e": {"enum": ["a", "b c", "5", "None", 7, None, True]},
                "s": {"type": "string", "enum": ["on", "off", "x\ny", "\nz"]},
                "c": {"const": "k"},
                "n": {"type": "integer", "enum": [1, 22]},
            },
            "required": ["e", "s"],
        }
    },
    "mixed": {
        "f": {
            "properties": {
                "a": {"type": ["string", "null"]},
                "b": {"anyOf": [{"type": "integer"}, {"type": "string", "minLength": 2}]},
                "c": {"anyOf": [{"type": "array", "items": TEXT}, TEXT]},
                "d": {"type": ["number", "string", "boolean"]},
                "e": {"anyOf": [{"type": "integer", "minimum": 3}, {"enum": ["all"]}]},
                "g": {"anyOf": [{"type": "string", "pattern": "^[0-9a-z]+$"}, {"type": "number"}]},
            },
            "required": ["b", "c", "d"],
        }
    },
    "nested": {
        "f": {
            "properties": {
                "l": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
                "o": {
                    "type": "object",
                    "properties": {
                        "x": TEXT,
                        "y": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "properties": {"k": {"type": "boolean"}, "t": {"enum": ["u"]}},
                            },
                        },
                    },
                    "required": ["x"],
                    "additionalProperties": False,
                },
                "q": {"type": "array", "items": TEXT, "maxItems": 3},
                "w": {"anyOf": [{"type": "array", "items": TEXT}, {"type": "null"}]},
            },
            "required": ["l", "o"],
        }
    },
    "constrained": {
        "f": {
            "properties": {
                "p": {"type": "string", "pattern": r"^[A-Z]{2}\d+$"},
                "u": {"type": "string", "pattern": "[<x]y"},
                "d": {"type": "string", "format": "date"},
                "m": {"type": "string", "minLength": 3, "maxLength": 9},
                "z": {"type": "string", "format": "colour"},
            },
            "required": ["p", "u", "m"],
        }
    },
    "free": {
        "f": {
            "properties": {
                "a": {},
                "b": {"description": "x"},
                "o": {"type": "object"},
                "l": {"type": "array"},
                "t": {"type": "object", "additionalProperties": {"type": "integer"}},
            },
            "required": ["a"],
        }
    },
    "refs": {
        "f": {
            "properties": {"n": {"$ref": "#/$defs/N"}, "k": {"$ref": "#/$defs/K"}},
            "required": ["n", "k"],
            "$defs": {
                "N": {
                    "type": "object",
                    "properties": {
                        "v": {"type": "integer"},
                        "c": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]},
                    },
                    "required": ["v"],
                },
                "K": {"enum": ["x", "y"]},
            },
        }
    },
}
"""Sets of tools, by what is in them."""


class Teaser(Drawer):
    """Draws outputs of a model that likes to generate some words."""

    def __init__(self, markers: Sequence[str], words: Sequence[str]) -> None:
        super().__init__(markers)
        self._words = [*_WORDS, *words]

    def draw(self, grammar: str, seed: int, most: int = 600) -> list[Piece] | None:
        source = random.Random(seed)
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        texts = {number: text for text, number in self.tokens.items()}
        pieces: list[Piece] = []
        wanted: list[int] = []
        closers = [json.loads(each) for each in _SUFFIX.findall(grammar)] or ["</", *self._words]
        while len(pieces) < most:
            bits = matcher.compute_bitmask()
            if not wanted and source.random() < 0.3:
                wanted = [*source.choice(source.choice((self._words, closers))).encode()]
            token = wanted.pop(0) if wanted else -1
            ends = any(bits[32:]) and source.random() < 0.3
            if ends or token < 0 or not bits[token // 8] >> (token % 8) & 1:
                wanted = [] if token < 0 or not ends else wanted
                token = _picked(bits, source, ends=ends, likely=token >= 0)
            if token == self.tokens[END]:
                return pieces
            pieces.append((texts[token], True) if token >= 256 else (bytes([token]), False))
            assert matcher.consume_token(token), matcher.get_error()
        return None


def calls_of(drawer: Drawer, output: OutputFormat, pieces: Sequence[Piece]) -> list[Any]:
    """(name, arguments) of each call that is read. Fails where anything else is returned."""
    calls: list[tuple[str, Any]] = []
    for part in drawer.parts(output, pieces):
        if part.kind is PartKind.TOOL_START:
            calls.append((part.name, None))
        elif part.kind is PartKind.TOOL_ARGS:
            calls[-1] = (calls[-1][0], json.loads(part.text))
        else:
            assert not part.text.strip(), text_of(pieces)
    return calls


def spelled(lark: Lark, form: str, tools: Tools, *, parallel: bool = False) -> str:
    """The grammar of calls: the parameters of the tools by their name."""
    schemas = [ToolSchema(name, each, param=f"tools.{name}") for name, each in tools.items()]
    calls = layout_for("none", form).spell_answer_calls(lark, schemas, "", parallel=parallel)
    return lark.grammar(calls)


def takes(form: str, tools: Tools, text: str, *, parallel: bool = False) -> bool:
    """Returns True if a model may write the text."""
    drawer = Drawer()
    grammar = spelled(drawer.lark(), form, tools, parallel=parallel)
    return drawer.takes(grammar, drawer.cut(text))


def check_drawn(
    form: str, tools: Tools, markers: Sequence[str] = (), *, parallel: bool = False, tries: int = 2
) -> int:
    """Draws outputs until `tries` have ended, at most three times as many; fails where one
    is not read as calls that fit. How many ended."""
    output = OutputFormat(
        "none",
        form,
        tools=tuple(ToolSchema(name, parameters) for name, parameters in tools.items()),
        parallel_calls=parallel,
        repeated_calls=True,
    )
    reader = layout_for("none", form)
    drawer = Teaser(markers, (*reader.openers, *reader.orphans, *markers))
    grammar = spelled(drawer.lark(), form, tools, parallel=parallel)
    assert not drawer.error(grammar), drawer.error(grammar)
    count = 0
    for pieces in filter(None, (drawer.draw(grammar, seed) for seed in range(3 * tries))):
        calls = calls_of(drawer, output, pieces)
        assert calls, text_of(pieces)
        assert parallel or len(calls) == 1, text_of(pieces)
        for name, arguments in calls:
            schema = {"additionalProperties": False, **tools[name], "type": "object"}
            errors = [each.message for each in Draft202012Validator(schema).iter_errors(arguments)]
            assert not errors, (errors, text_of(pieces))
        count += 1
        if count == tries:
            break
    return count


def _picked(bits: bytes, source: random.Random, *, ends: bool, likely: bool) -> int:
    """A marker if it `ends`; else any, or where `likely` rather a letter that ends something."""
    unpacked = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little")
    allowed: list[int] = np.nonzero(unpacked)[0].tolist()
    assert allowed, "the grammar leads nowhere"
    if ends:
        return source.choice([each for each in allowed if each >= 256])
    some = [each for each in allowed if each >= 256 or each in b'"}]>)\n<'] if likely else []
    return source.choice(some if some and source.random() < 0.6 else allowed)
