"""The tables of the documentation that the code tells: `python -m tests.doc_tables` writes them.

In a page a table stands between `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import node.parsing
from node.dialects.anthropic.fields import COUNT_TOKENS, MESSAGES
from node.dialects.chat.body import CHAT
from node.dialects.completions.completions import COMPLETIONS
from node.dialects.fields.field_table import FieldTable
from node.dialects.responses.fields import RESPONSES
from node.parsing import registry
from node.parsing.format import Grammar, ReasoningFormat, ToolFormat

DOCS = Path(__file__).parent.parent / "docs"
HOW_TO_WRITE = "run `python -m tests.doc_tables`"

_TABLE = re.compile(
    r"(?P<begin><!-- table: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end of table -->)", re.DOTALL
)


# --- fields of bodies ------------------------------------------------------------------------


def field_table(fields: FieldTable[Any]) -> str:
    """One row for each field that a path knows: first those that are applied, then those that are
    refused, then those without an effect."""
    rows = [(name, "applied", fields.notes[name]) for name in sorted(field_names(fields))]
    for name, refusal in sorted(fields.refused.items()):
        rows.append((name, "refused", f"Taken: {refusal.taken}. {refusal.why}".strip()))
    rows += [(name, "ignored", why) for name, why in sorted(fields.ignored.items())]
    cells = [(f"`{name}`", kind, text) for name, kind, text in rows]
    return _table(("field", "is", "how, why, or which values are taken"), cells)


def field_names(fields: FieldTable[Any]) -> list[str]:
    """The fields that are applied, as clients spell them."""
    return [known.alias or name for name, known in fields.body.model_fields.items()]


# --- formats of outputs ----------------------------------------------------------------------


def reasoning_table() -> str:
    """One row for each format of reasoning."""
    rows = []
    for name in registry.reasoning_names():
        found, about = _REASONING[name]
        marks = _reasoning_marks(found) if isinstance(found, ReasoningFormat) else about
        rows.append((f"`{name}`", marks, _aliases(name, registry.REASONING_ALIASES)))
    return _table(("name", "reasoning", "other names"), rows)


def reasoning_end_table() -> str:
    """One row for each format that has reasoning: what is forced where a budget is used up."""
    rows = []
    for name in registry.reasoning_names():
        grammar = registry.grammar_for(name, "none")
        if not grammar.closing:
            continue
        begins = grammar.answer_openings(reads_calls=True, names=("f",))
        then = " or ".join(f"`{_on_a_line(each)}`" for each in begins)
        rows.append((f"`{name}`", f"`{_on_a_line(grammar.closing)}`", then))
    return _table(("format", "what is forced", "what may follow, with a tool `f`"), rows)


def tool_call_table() -> str:
    """One row for each format of tool calls."""
    rows = [
        (f"`{name}`", _TOOL_CALLS[name][1], _aliases(name, registry.TOOL_CALL_ALIASES))
        for name in registry.tool_call_names()
    ]
    return _table(("name", "calls", "other names"), rows)


def _reasoning_marks(form: ReasoningFormat) -> str:
    if not form.openers:
        return "Nothing is read: reasoning stays in the answer, with its markup."
    marks = " or ".join(f"`{_on_a_line(each)}`" for each in form.openers)
    ends = " or ".join(f"`{_on_a_line(each)}`" for each in form.closers)
    more = [
        "Has begun with the output, whatever the prompt says." if form.implicit else "",
        "May come again behind an answer." if form.repeats else "",
    ]
    return " ".join(filter(None, (f"{marks} … {ends}.", *more)))


def _on_a_line(text: str) -> str:
    return text.replace("\n", "⏎")


def _aliases(name: str, aliases: Mapping[str, str]) -> str:
    return ", ".join(f"`{alias}`" for alias, known in sorted(aliases.items()) if known == name)


def _known_formats() -> tuple[dict[str, tuple[Any, str]], dict[str, tuple[Any, str]]]:
    """(formats of reasoning, of tool calls) by name: the format, and what is written about it."""
    reasoning: dict[str, tuple[Any, str]] = {}
    tool_calls: dict[str, tuple[Any, str]] = {
        "none": (None, "Nothing is read: calls stay in the answer, with their markup.")
    }
    for each in pkgutil.walk_packages(node.parsing.__path__, f"{node.parsing.__name__}."):
        if each.ispkg:
            continue
        for value, about in _defined(importlib.import_module(each.name)):
            kinds = type(value).__mro__
            if isinstance(value, ReasoningFormat) or Grammar in kinds:
                reasoning[value.name] = value, about
            if ToolFormat in kinds or Grammar in kinds:
                tool_calls[value.name] = value, about
    return reasoning, tool_calls


def _defined(module: ModuleType) -> Iterator[tuple[Any, str]]:
    """What a module itself gives a name to, and the text below that, or the module's own."""
    statements = ast.parse(inspect.getsource(module)).body
    for at, statement in enumerate(statements):
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        below = ast.get_docstring(ast.Module(statements[at + 1 : at + 2], []))
        about = (below or module.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        for target in targets:
            if isinstance(target, ast.Name):
                yield vars(module).get(target.id), about


_REASONING, _TOOL_CALLS = _known_formats()


# --- pages -----------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


FIELD_TABLES: Mapping[str, FieldTable[Any]] = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "messages": MESSAGES,
    "count-tokens": COUNT_TOKENS,
}
PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "api.md": {name: partial(field_table, fields) for name, fields in FIELD_TABLES.items()},
    "parsers.md": {"tool-calls": tool_call_table, "reasoning": reasoning_table},
    "thinking.md": {"reasoning-ends": reasoning_end_table},
}
"""The tables by page and name."""


def table_names(text: str) -> list[str]:
    """The tables that a page has, in its order."""
    return [found["name"] for found in _TABLE.finditer(text)]


def with_tables(page: str, text: str) -> str:
    """The page's text with the tables as the code tells them. Raises `KeyError` for a table that
    is not known."""
    tables = PAGES[page]

    def renew(found: re.Match[str]) -> str:
        return f"{found['begin']}\n{tables[found['name']]()}\n{found['end']}"

    return _TABLE.sub(renew, text)


def main() -> int:
    for page in PAGES:
        path = DOCS / page
        path.write_text(with_tables(page, path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
