"""Turns a client's grammar into one pattern, so that a schema can constrain a string to it in any
format's spelling of a call.

A Lark grammar without recursive rules is a regular expression: each name is replaced by its
definition. A grammar with syntax that is not supported here has no pattern.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence

from node.parsing.constraints.lark_reader import LarkGrammar, NotUnderstood, Token, read_grammar
from node.parsing.constraints.regex_syntax import inner_pattern

LONGEST_PATTERN = 32 * 1024
"""Most characters of a pattern; a longer one takes seconds to compile."""
_DEEPEST = 64
"""Deepest nesting of names and brackets."""
_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}]")
_ANYTHING = re.compile(r"(?<!\\)\[(?:\\s\\S|\\S\\s|\\d\\D|\\D\\d|\\w\\W|\\W\\w)\]")
"""Classes that match any character. Regex dialects disagree about the halves but agree about the
whole."""
_CONTROLS = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\f": r"\f"}
_COMMON: Mapping[str, str] = {
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "CR": r"\r",
    "DIGIT": "[0-9]",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "HEXDIGIT": "[0-9A-Fa-f]",
    "INT": "[0-9]+",
    "LCASE_LETTER": "[a-z]",
    "LETTER": "[A-Za-z]",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "UCASE_LETTER": "[A-Z]",
    "WORD": "[A-Za-z]+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
}
"""Terminals of Lark's library."""


def pattern_of(syntax: str, definition: str) -> str | None:
    """Returns the pattern, in JSON Schema's syntax, that matches exactly the texts of the grammar;
    None if there is none. `syntax` is `lark` or `regex`."""
    try:
        inner = _of_regex(definition) if syntax == "regex" else _of_lark(definition)
        inner_pattern(inner)
    except (NotUnderstood, ValueError):
        return None
    return f"^(?:{inner})$" if len(inner) <= LONGEST_PATTERN else None


def _of_regex(definition: str) -> str:
    inner = definition.removeprefix("^")
    ends = re.search(r"(?<!\\)(?:\\\\)*\$\Z", inner) is not None
    inner = inner[:-1] if ends else inner
    _, has_choice = inner_pattern(inner)
    if has_choice and inner != definition:
        # An anchor belongs to only one of the alternatives.
        raise NotUnderstood
    return _with_anything(inner)


def _with_anything(pattern: str) -> str:
    return _ANYTHING.sub(r"(?:[^\\n]|\\n)", pattern)


def _of_lark(definition: str) -> str:
    grammar = read_grammar(definition)
    return _Maker(grammar, _imported(grammar)).of_name("start", 0)


def _imported(grammar: LarkGrammar) -> dict[str, str]:
    """Returns patterns of the library's terminals by the names that the grammar gives them."""
    found: dict[str, str] = {}
    for directive, *tokens in grammar.directives:
        if directive.text.startswith("%llguidance"):
            continue
        content = "".join(token.text for token in tokens)
        match = re.fullmatch(r"common\.(\w+)(?:->(\w+))?|common\(([\w,]+)\)", content)
        if directive.text != "%import" or match is None:
            raise NotUnderstood
        names = {match[2] or match[1]: match[1]}
        if match[3]:
            names = {name: name for name in match[3].split(",")}
        for alias, name in names.items():
            if name not in _COMMON:
                raise NotUnderstood
            found[alias] = _COMMON[name]
    return found


class _Maker:
    """Makes patterns of one grammar's rules."""

    def __init__(self, grammar: LarkGrammar, imported: Mapping[str, str]) -> None:
        self._rules = grammar.rules
        self._made = dict(imported)

    def of_name(self, name: str, depth: int) -> str:
        """Returns the pattern of a rule or terminal. Raises `NotUnderstood` if it is recursive or
        undefined."""
        if name in self._made:
            return self._made[name]
        rule = self._rules.get(name)
        if rule is None or not rule.is_plain or depth > _DEEPEST:
            raise NotUnderstood
        made = self._made[name] = _Body(rule.body, self.of_name).pattern(depth + 1)
        return made


class _Body:
    """Makes the pattern of one rule's body."""

    def __init__(self, tokens: Sequence[Token], of_name: Callable[[str, int], str]) -> None:
        self._tokens = tokens
        self._of_name = of_name
        self._at = 0

    def pattern(self, depth: int) -> str:
        made = self._options(depth)
        if self._at < len(self._tokens):
            raise NotUnderstood
        return made

    def _options(self, depth: int) -> str:
        if depth > _DEEPEST:
            raise NotUnderstood
        ways = [self._sequence(depth)]
        while self._accept("|"):
            ways.append(self._sequence(depth))
        return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"

    def _sequence(self, depth: int) -> str:
        pieces: list[str] = []
        while self._at < len(self._tokens) and self._next() not in ("|", ")", "]"):
            if self._accept("->"):
                # A name in the syntax tree.
                self._take("name")
                break
            pieces.append(self._item(depth))
            if sum(map(len, pieces)) > LONGEST_PATTERN:
                raise NotUnderstood
        return "".join(pieces)

    def _item(self, depth: int) -> str:
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "text":
            made = self._literal(text)
        elif kind == "name":
            made = self._of_name(text, depth)
        elif text in ("(", "["):
            made = self._options(depth + 1)
            if not self._accept(")" if text == "(" else "]"):
                raise NotUnderstood
            made = made if text == "(" else f"(?:{made})?"
        else:
            raise NotUnderstood
        times = self._times()
        return f"(?:{made}){times}" if times else made

    def _literal(self, text: str) -> str:
        if text.startswith("/"):
            pattern, _, flags = text[1:].rpartition("/")
            if flags:
                raise NotUnderstood
            return f"(?:{_with_anything(pattern)})"
        if not text.startswith('"'):
            raise NotUnderstood
        content = _string(text.removesuffix("i"))
        if self._next() == "." and self._next(1) == ".":
            self._at += 2
            return _range(content, _string(self._take("text")))
        return "".join(_any_case(char) if text.endswith("i") else _plain(char) for char in content)

    def _times(self) -> str:
        if self._next() in ("?", "*", "+"):
            self._at += 1
            return self._tokens[self._at - 1].text
        if self._accept("~"):
            fewest = most = self._number()
            if self._next() == "." and self._next(1) == ".":
                self._at += 2
                most = self._number()
            return f"{{{fewest},{most}}}"
        if not self._accept("{"):
            return ""
        content = ""
        while not self._accept("}"):
            content += self._tokens[self._at].text if self._at < len(self._tokens) else "?"
            self._at += 1
            if len(content) > 16:
                raise NotUnderstood
        found = re.fullmatch(r"(\d*)(,?)(\d*)", content)
        if found is None or content in ("", ","):
            raise NotUnderstood
        return f"{{{found[1] or 0}{found[2]}{found[3]}}}"

    def _number(self) -> str:
        number = self._take("sign")
        if not number.isdecimal():
            raise NotUnderstood
        return number

    def _take(self, kind: str) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at].kind != kind:
            raise NotUnderstood
        self._at += 1
        return self._tokens[self._at - 1].text

    def _next(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at].text if at < len(self._tokens) else ""

    def _accept(self, sign: str) -> bool:
        is_next = self._next() == sign
        self._at += is_next
        return is_next


def _string(text: str) -> str:
    try:
        content = json.loads(text)
    except ValueError:
        raise NotUnderstood from None
    if not isinstance(content, str):
        raise NotUnderstood
    return content


def _range(first: str, last: str) -> str:
    if len(first) != 1 or len(last) != 1 or first > last:
        raise NotUnderstood
    return f"[{_in_class(first)}-{_in_class(last)}]"


def _in_class(char: str) -> str:
    return f"\\u{ord(char):04x}" if char.isascii() and not char.isalnum() else char


def _any_case(char: str) -> str:
    lower, upper = char.lower(), char.upper()
    if lower == upper:
        return _plain(char)
    if len(lower) != 1 or len(upper) != 1:
        raise NotUnderstood
    return f"[{lower}{upper}]"


def _plain(char: str) -> str:
    """Returns a character as it is written in a pattern."""
    if _SPECIAL.match(char):
        return f"\\{char}"
    if char < " " or char == "\x7f":
        return _CONTROLS.get(char, f"\\x{ord(char):02x}")
    return char
