"""Grammars as patterns: the same texts, or no pattern at all."""

import re

import pytest

from node.parsing.constraints.grammar_pattern import LONGEST_PATTERN, pattern_of

PATCH = r"""
start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: add | delete | update
add: "*** Add File: " name LF line+ // of a new file
delete: "*** Delete File: " name LF
update: "*** Update File: " name LF move? change?
name: /(.+)/
line: "+" /(.*)/ LF -> line
move: "*** Move to: " name LF
change: (context | changed)+ last?
context: ("@@" | "@@ " /(.+)/) LF
changed: ("+" | "-" | " ") /(.*)/ LF
last: "*** End of File" LF
%import common.LF
"""
GOOD = (
    "*** Begin Patch\n*** Delete File: a\n*** End Patch",
    "*** Begin Patch\n*** Add File: a b\n+one\n+\n*** End Patch\n",
    '*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@ f()\n-x = "1"\n+\\n\n \n*** End Patch',
    "*** Begin Patch\n*** Update File: a\n@@\n+x\n*** End of File\n*** End Patch",
)
BAD = (
    "",
    "*** Begin Patch\n*** End Patch",
    "*** Begin Patch\n*** Add File: a\none\n*** End Patch",
    "x" + GOOD[0],
    GOOD[0] + "\n\n",
)


def test_the_grammar_of_patches_is_a_pattern() -> None:
    pattern = pattern_of("lark", PATCH)
    assert pattern is not None
    for text in GOOD:
        assert re.fullmatch(pattern, text), text
    for text in BAD:
        assert not re.fullmatch(pattern.removesuffix("$"), text), text


@pytest.mark.parametrize(
    ("definition", "good", "bad"),
    [
        ('start: "a.b"', ["a.b"], ["axb"]),
        ('start: "a" | "b" "c"', ["a", "bc"], ["ac", "b"]),
        ('start: ("a" | "b") "c"', ["ac", "bc"], ["a"]),
        ('start: "a" |', ["a", ""], ["b"]),
        ('start: ["a"] "b"', ["ab", "b"], ["a"]),
        ('start: "ab"? "c"* "d"+', ["abd", "ccdd"], ["abc", "ad"]),
        ('start: "ab" ~ 2', ["abab"], ["ab", "ababab"]),
        ('start: "a" ~ 1..2 "b"', ["ab", "aab"], ["b", "aaab"]),
        ('start: "a"{2,3} "b"{2} "c"{,1}', ["aabb", "aaabbc"], ["abb", "aab"]),
        ('start: "a".."c" "!".."/"', ["a!", "b/"], ["d!", "a0"]),
        ('start: "Ab1"i', ["aB1", "AB1"], ["Ab2"]),
        ("start: /[a-c]+/ X\nX: /x|y/", ["abx", "cy"], ["x", "a"]),
        ("?start: x\n!x: y\n?y: /a/ -> z", ["a"], ["", "aa"]),
        (r"start: /[\s\S]+/", ["a\n\u00a0\u2028\u3000\x85"], [""]),
        ("start: x\nx: y z\ny.2: /a/\nz: /b/ | /c/", ["ab", "ac"], ["a"]),
        ('start: "\\n\\t\\"\\\\/"', ['\n\t"\\/'], ["n"]),
        ('start: "\\u00e9ü🙂"', ["éü🙂"], ["e"]),
        ("start: INT A\n%import common.INT\n%import common.LETTER -> A", ["12x"], ["x", "1_"]),
        ("start: CR LF\n%import common (CR, LF)", ["\r\n"], ["\n"]),
        ('%llguidance {"no_forcing": true}\nstart: "a"', ["a"], ["b"]),
        ('start: "a" # comment\n  | "b" // another', ["a", "b"], ["ab"]),
        ('start: "a"\nunused: unused', ["a"], [""]),
    ],
)
def test_the_pattern_accepts_what_the_grammar_accepts(
    definition: str, good: list[str], bad: list[str]
) -> None:
    pattern = pattern_of("lark", definition)
    assert pattern is not None
    for text in good:
        assert re.fullmatch(pattern, text), (pattern, text)
    for text in bad:
        assert not re.fullmatch(pattern, text), (pattern, text)


@pytest.mark.parametrize(
    "definition",
    [
        'start: "(" start? ")"',
        'start: x\nx: "a" y\ny: x | "b"',
        "start: x",
        'begin: "a"',
        "start: /a/i",
        "start: /(?=a)a/",
        "start: /^a$/",
        "start: /a(/",
        "start: <|im_end|>",
        'start: %json {"type": "object"}',
        'start[capture]: "a"',
        'start: "a"\n%ignore /[ ]+/',
        "start: WS\n%import common.WS_OF_MINE -> WS",
        "start: x\n%import .other.x",
        'start: ("a"',
        'start: "a")',
        'start: "a" -> ',
        'start: "c".."a"',
        'start: "a" ~ x',
        'start: "a"{x}',
        'start: "a"{,}',
        'start: "a" & "b"',
        "start: x{x}\nx{y}: y",
        'start: "\\q"',
        "start: " + "(" * 200 + '"a"' + ")" * 200,
        "start: " + '"abcdefgh" ' * 5000,
        "\n".join(f'x{at}: x{at + 1} x{at + 1} "a"' for at in range(40)) + '\nstart: x0\nx40: "a"',
        'start: "a"{2001}',
    ],
)
def test_what_is_no_pattern_or_is_not_understood_has_none(definition: str) -> None:
    assert pattern_of("lark", definition) is None


@pytest.mark.parametrize(
    ("definition", "pattern"),
    [
        ("a|b", "^(?:a|b)$"),
        ("^(a|b)+$", "^(?:(a|b)+)$"),
        (r"a\$", r"^(?:a\$)$"),
        (r"a\\$", r"^(?:a\\)$"),
        (r"[\d\D]", r"^(?:(?:[^\n]|\n))$"),
        (r"\[\s\S]", r"^(?:\[\s\S])$"),
        ("^a|b$", None),
        ("(?P<n>a)", None),
        (r"\bx", None),
        ("a(", None),
        ("a" * (LONGEST_PATTERN + 1), None),
    ],
)
def test_a_regular_expression_is_one_of_all_of_the_text(
    definition: str, pattern: str | None
) -> None:
    assert pattern_of("regex", definition) == pattern
