"""Which grammars have no text that ends: none of those, and no other, is refused."""

import pytest

from node.engine.constraints.lark_check import can_end

NESTED = 'start: %lark {\nstart: "a" start\n}\n'


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a" start',
        "start: start",
        'start: x\nx: "a" x | "b" x',
        'start: x y\nx: "a"\ny: "b" (y | x y)+',
        'start: "a" ( x | y )\nx: y\ny: x',
        "start: x{2,3}\nx: x",
        'start: x // | "a"\nx: /b\\/|/ x # "c"',
        'start: LETTER start -> name\nLETTER: "a" | "b"\n%ignore /[ ]+/',
        'start[capture]: x\nx.2: %json {"type": "object", "const": "}: \\"a"} x',
        '%llguidance {"no_forcing": false}\nstart: <|im_end|> x\nx: <[3]> x',
    ],
)
def test_what_only_continues_has_no_end(grammar: str) -> None:
    assert not can_end(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a" start | "b"',
        'start: "a" start |',
        'start: ("a" start)?',
        'start: ["a" start]',
        "start: x*\nx: x",
        "start: x{0,3} x{,2}\nx: x",
        'start: x\nunused: unused\nx: "a"',
        'start: x+ y\ny: "a"\nx: y\n  | "a" x',
        "start: ITEM\nITEM: /a/ | OTHER\nOTHER: /b/",
        "start: @other",
        "start: ",
        "%import common.WORD\nstart: WORD",
        'start: %json {"type": "integer"}\n%ignore "start: start"',
    ],
)
def test_what_ends_some_way_has_one(grammar: str) -> None:
    assert can_end(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        NESTED,
        'start: "a" start\nother: ~("b")',
        'start: x::0\nx::_: "a" x::_',
        'start: ("a" start',
        "start: x)\nx: x",
        "start: x{2\nx: x",
        "start: %json {oh} start",
        "start: " + "(" * 99 + "start" + ")" * 99,
        "start: r0\n" + "".join(f"r{at}: r{at + 1}\n" for at in range(2000)) + "r2000: r0",
    ],
)
def test_what_is_not_understood_is_not_refused(grammar: str) -> None:
    assert can_end(grammar) is not (grammar.endswith("r2000: r0"))
