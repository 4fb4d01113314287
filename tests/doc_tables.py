"""The tables of the documentation that come from code: `python -m tests.doc_tables` writes them.

In a page a table is between `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

import ast
import importlib
import inspect
import json
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
from node.dialects.ollama.chat import OLLAMA_CHAT
from node.dialects.ollama.generate import OLLAMA_GENERATE
from node.dialects.ollama.options import OPTIONS
from node.dialects.responses.fields import RESPONSES
from node.parsing import registry
from node.parsing.format import OutputLayout, ReasoningFormat, ToolFormat
from router.api.admin.openapi import BODIES, description
from router.api.admin.routes import admin_routes
from router.commands.connect.clients import CLIENTS, Client
from router.commands.connect.setup import Endpoint
from router.core import Core
from tests.command_lines import ALL_COMMANDS, options_of

DOCS = Path(__file__).parent.parent / "docs"
HOW_TO_WRITE = "run `python -m tests.doc_tables`"

_TABLE = re.compile(
    r"(?P<begin><!-- table: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end of table -->)", re.DOTALL
)


# --- fields of bodies ------------------------------------------------------------------------


def field_matrix() -> str:
    """One row for each field that a path knows, one column for each path."""
    head = ["field", *FIELD_TABLES]
    rows = []
    for name, kinds in _kinds(FIELD_TABLES).items():
        cells = (_WORDS[kinds[path][0]] if path in kinds else "" for path in FIELD_TABLES)
        rows.append([f"`{name}`", *cells])
    return _table(head, rows)


def field_details(tables: Mapping[str, FieldTable[Any]]) -> str:
    """A list of all fields: how each is applied, which values of a refused one are accepted, or
    why one has no effect. Paths that have the same to say share a line."""
    lines = []
    for name, kinds in _kinds(tables).items():
        paths: dict[str, list[str]] = {}
        for path, (kind, text) in kinds.items():
            words = f"400 unless {text}" if kind == "refused" else text
            words = f"no effect. {text}" if kind == "ignored" else words
            paths.setdefault(words, []).append(path)
        if len(paths) == 1:
            ((words, where),) = paths.items()
            only = "" if len(where) == len(tables) else f" ({', '.join(where)})"
            lines.append(f"- `{name}`{only}: {words}\n")
            continue
        lines.append(f"- `{name}`\n")
        lines += [f"  - {', '.join(where)}: {words}\n" for words, where in paths.items()]
    return _from_here("".join(lines))


_WORDS = {"applied": "yes", "refused": "400", "ignored": "no effect"}


def _kinds(
    tables: Mapping[str, FieldTable[Any]],
) -> dict[str, dict[str, tuple[str, str]]]:
    """By field and path: what becomes of the field, and the text about it."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for path, table in tables.items():
        for name in field_names(table):
            found.setdefault(name, {})[path] = "applied", table.notes[name]
        for name, refusal in table.refused.items():
            text = f"{refusal.accepted}. {refusal.why}".strip()
            found.setdefault(name, {})[path] = "refused", text
        for name, why in table.ignored.items():
            found.setdefault(name, {})[path] = "ignored", why
    return dict(sorted(found.items()))


def _from_here(text: str) -> str:
    """The notes with their links, which name headings of `docs/reference/api.md` and pages of
    `docs/concepts/`, as links from `docs/reference/`."""
    return text.replace("](#", "](api.md#").replace("](engine.md", "](../concepts/engine.md")


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
    """One row for each format that has reasoning: the tokens forced at a thinking budget's end."""
    rows = []
    for name in registry.reasoning_names():
        layout = registry.layout_for(name, "none")
        if not layout.closing:
            continue
        begins = layout.answer_openings(reads_calls=True, names=("f",))
        then = " or ".join(f"`{_on_a_line(each)}`" for each in begins)
        rows.append((f"`{name}`", f"`{_on_a_line(layout.closing)}`", then))
    return _table(("format", "forced tokens", "what may follow, with a tool `f`"), rows)


def tool_call_table() -> str:
    """One row for each format of tool calls."""
    rows = [
        (f"`{name}`", _TOOL_CALLS[name][1], _aliases(name, registry.TOOL_CALL_ALIASES))
        for name in registry.tool_call_names()
    ]
    return _table(("name", "calls", "other names"), rows)


def _reasoning_marks(form: ReasoningFormat) -> str:
    if not form.openers:
        return "Not parsed: reasoning stays in the content, with its markup."
    marks = " or ".join(f"`{_on_a_line(each)}`" for each in form.openers)
    ends = " or ".join(f"`{_on_a_line(each)}`" for each in form.closers)
    more = [
        "Begins with the output, whatever the prompt contains." if form.implicit else "",
        "May come again after content." if form.repeats else "",
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
        "none": (None, "Not parsed: calls stay in the content, with their markup.")
    }
    for each in pkgutil.walk_packages(node.parsing.__path__, f"{node.parsing.__name__}."):
        if each.ispkg:
            continue
        for value, about in _defined(importlib.import_module(each.name)):
            kinds = type(value).__mro__
            if isinstance(value, ReasoningFormat) or OutputLayout in kinds:
                reasoning[value.name] = value, about
            if ToolFormat in kinds or OutputLayout in kinds:
                tool_calls[value.name] = value, about
    return reasoning, tool_calls


def _defined(module: ModuleType) -> Iterator[tuple[Any, str]]:
    """Yields the values that a module itself names, and the text below each, or the module's
    own."""
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


# --- options of commands ---------------------------------------------------------------------


def option_table(command: Any) -> str:
    """One row for each option of a verb, with its help text."""
    rows = []
    for option in options_of(command):
        value = "" if option.is_flag else f" {option.metavar or 'VALUE'}"
        names = ", ".join(f"`{each}{value}`" for each in (*option.opts, *option.secondary_opts))
        rows.append((names, option.help or ""))
    return _table(("option", "meaning"), rows)


def command_page(path: str) -> str:
    """The page with a command's section."""
    program, verb = path.split()[:2]
    if verb == "service":
        return "reference/cli-services.md"
    suffix = ""
    if program == "router":
        suffix = next((page for page, verbs in _ROUTER_PAGES.items() if verb in verbs), "")
    elif verb in _MODELS_OF_AGENT:
        suffix = "-models"
    return f"reference/cli-{program}{suffix}.md"


_ROUTER_PAGES = {
    "-nodes": (
        "add-node",
        "discover",
        "rotate-node",
        "accept",
        "remove-node",
        "nodes",
        "doctor",
        "upgrade-plan",
        "upgrade-nodes",
    ),
    "-process": ("serve", "up", "migrate", "backup", "restore", "connect", "config", "reload"),
    "-use": ("status", "top", "ps", "chat", "bench"),
}
"""Verbs that are not on the first page."""
_MODELS_OF_AGENT = ("search", "pull", "import", "models", "rm", "ps", "stop", "run")


def _option_tables(page: str) -> dict[str, Callable[[], str]]:
    """By name, the option tables of a page: `router-alias-set` is that of `router alias set`."""
    return {
        path.replace(" ", "-"): partial(option_table, command)
        for path, command in ALL_COMMANDS
        if command_page(path) == page and options_of(command)
    }


# --- settings of clients ---------------------------------------------------------------------


def client_settings(client: Client) -> str:
    """The output of `router connect` for a client, as blocks of a page."""
    place = Endpoint("http://127.0.0.1:8800", "KEY", "MODEL", 32768)
    return "\n".join(
        (f"`{block.file.path}`:\n\n" if block.file else "")
        + f"```{block.language}\n{block.text}```\n"
        for block in client.setup(place).blocks()
    )


# --- admin API -------------------------------------------------------------------------------


def admin_table() -> str:
    """One row for each verb of the admin API, with an example of its body."""
    routes = admin_routes(_no_core)
    rows = []
    for path, verbs in description(routes)["paths"].items():
        for method, verb in verbs.items():
            name = f"{method.upper()} {path}"
            example = f"`{json.dumps(BODIES[name])}`" if name in BODIES else ""
            does = " ".join(verb["description"].split())
            rows.append((f"`{name}`", does, example))
    return _table(("method and path", "what it does", "body, for example"), rows)


def _no_core() -> Core:
    raise AssertionError("no request is served")


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
OLLAMA_TABLES: Mapping[str, FieldTable[Any]] = {
    "chat": OLLAMA_CHAT,
    "generate": OLLAMA_GENERATE,
}
PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "reference/fields.md": {
        "field-matrix": field_matrix,
        "field-details": partial(field_details, FIELD_TABLES),
    },
    "reference/ollama.md": {
        "ollama-fields": partial(field_details, OLLAMA_TABLES),
        "ollama-options": partial(field_details, {"options": OPTIONS}),
    },
    "guides/agents.md": {
        f"connect-{each.name}": partial(client_settings, each) for each in CLIENTS.values()
    },
    "concepts/parsers.md": {"tool-calls": tool_call_table, "reasoning": reasoning_table},
    "concepts/thinking.md": {"reasoning-ends": reasoning_end_table},
    "reference/admin-api.md": {"admin-verbs": admin_table},
    **{page: _option_tables(page) for page in sorted({command_page(p) for p, _ in ALL_COMMANDS})},
}
"""The tables by page and name."""


def table_names(text: str) -> list[str]:
    """The tables that a page has, in its order."""
    return [found["name"] for found in _TABLE.finditer(text)]


def with_tables(page: str, text: str) -> str:
    """The page's text with its tables made anew. Raises `KeyError` for a table that is not
    known."""
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
