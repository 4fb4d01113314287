"""Measures of the code as a house: `python -m tests.house`, with `--json` for scripts.

Sizes of files, functions and classes, parameters, broad excepts, files in a folder, folders that
import each other, class names that occur twice in a package, and the first words of docstrings.
`tests/test_shape.py` holds most of them to a limit.
"""

import argparse
import ast
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.sources import ROOT, circle, folder_graph, imports, source_files

MANY_PARAMETERS = 8
MANY_METHODS = 25
Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function


@dataclass(frozen=True)
class Source:
    """One parsed module."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def package(self) -> str:
        return self.name.partition("/")[0]

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    def functions(self) -> Iterator[Function]:
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def docstrings(self) -> Iterator[str]:
        """The docstrings of the module, its classes and functions, and of its attributes: a bare
        string behind an assignment."""
        for node in ast.walk(self.tree):
            if isinstance(node, Documented) and (text := ast.get_docstring(node)):
                yield text
            body: list[ast.stmt] = getattr(node, "body", []) if isinstance(node, Documented) else []
            for before, behind in zip(body, body[1:], strict=False):
                if isinstance(before, ast.Assign | ast.AnnAssign) and (text := _bare_text(behind)):
                    yield text


def _bare_text(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return value if isinstance(value, str) else ""
    return ""


@cache
def sources() -> tuple[Source, ...]:
    """Every module of the product, each parsed once."""
    return tuple(Source(path) for path in source_files())


def methods(node: ast.ClassDef) -> int:
    """Number of methods, properties included."""
    return sum(isinstance(each, Function) for each in node.body)


def crowded_classes(found: Sequence[Source]) -> dict[str, int]:
    """Methods of each class that has more than `MANY_METHODS`, by its place."""
    return {
        f"{source.name}:{node.name}": methods(node)
        for source in found
        for node in source.classes()
        if methods(node) > MANY_METHODS
    }


def repeated_classes(found: Sequence[Source]) -> dict[str, list[str]]:
    """Files of each class name that occurs more than once in a package."""
    places: dict[str, list[str]] = defaultdict(list)
    for source in found:
        for node in source.classes():
            places[f"{source.package}: {node.name}"].append(source.name)
    return {name: files for name, files in places.items() if len(files) > 1}


def first_words(found: Sequence[Source]) -> Counter[str]:
    """Number of docstrings that begin with each word."""
    return Counter(text.split()[0] for source in found for text in source.docstrings())


def files_by_folder(found: Sequence[Source]) -> Counter[str]:
    return Counter(
        str(Path(each.name).parent) for each in found if not each.name.endswith("__init__.py")
    )


def _parameters(function: Function) -> int:
    given = function.args
    return len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)


def _is_broad(handler: ast.ExceptHandler) -> bool:
    names = {node.id for node in ast.walk(handler.type or handler) if isinstance(node, ast.Name)}
    return handler.type is None or bool(names & {"Exception", "BaseException"})


def _length(function: Function) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def _spread(numbers: Sequence[int], *shares: float) -> str:
    """Percentiles of the numbers, and the largest."""
    ordered = sorted(numbers)
    found = [ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in shares]
    return " / ".join(map(str, [*found, ordered[-1]]))


def measures(found: Sequence[Source]) -> dict[str, str]:
    """Each measure as it is printed."""
    functions = [function for each in found for function in each.functions()]
    lines = sum(each.lines for each in found)
    tests = sum(len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("*.py"))
    broad = sum(
        isinstance(node, ast.ExceptHandler) and _is_broad(node)
        for each in found
        for node in ast.walk(each.tree)
    )
    many = [each for each in functions if _parameters(each) > MANY_PARAMETERS]
    words, folders = first_words(found), files_by_folder(found)
    riddles = sum(words[word] for word in ("What", "Of", "Whether", "How", "As", "Whose", "Who"))
    total = sum(words.values())
    return {
        "files": f"{len(found):,}",
        "lines": f"{lines:,}",
        "lines of a file: median / p90 / max": _spread([each.lines for each in found], 0.5, 0.9),
        "lines of a function: median / p99 / max": _spread(
            [_length(each) for each in functions], 0.5, 0.99
        ),
        f"functions of more than {MANY_PARAMETERS} parameters": str(len(many)),
        "broad excepts for 1,000 lines": f"{1000 * broad / lines:.2f}",
        "lines of tests to lines of source": f"{tests / lines:.2f}",
        "files of a folder: median / p90 / max": _spread(list(folders.values()), 0.5, 0.9),
        "folders that import each other": ", ".join(circle(folder_graph(imports()))) or "none",
        "methods of a class: median / p99 / max": _spread(
            [methods(node) for each in found for node in each.classes()], 0.5, 0.99
        ),
        f"classes of more than {MANY_METHODS} methods": str(len(crowded_classes(found))),
        "class names that occur twice in a package": str(len(repeated_classes(found))),
        "docstrings": f"{total:,}",
        "docstrings that begin with What, Of, Whether, How, As, Whose or Who": (
            f"{riddles:,} ({riddles / total:.0%})"
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__)
    parser.add_argument("--json", action="store_true", help="for scripts, with all words")
    given = parser.parse_args()
    found = sources()
    if given.json:
        everything = {
            "measures": measures(found),
            "files_by_folder": files_by_folder(found),
            "crowded_classes": crowded_classes(found),
            "repeated_classes": repeated_classes(found),
            "first_words": first_words(found),
        }
        sys.stdout.write(json.dumps(everything, indent=2) + "\n")
        return
    console = Console(width=100)
    table = Table("measure", "now", title="The house")
    for name, value in measures(found).items():
        table.add_row(name, value)
    console.print(table)
    common = first_words(found).most_common(20)
    console.print("First words of docstrings: " + ", ".join(f"{w} {n}" for w, n in common))
    full = files_by_folder(found).most_common(5)
    console.print("Fullest folders: " + ", ".join(f"{name} {count}" for name, count in full))


if __name__ == "__main__":
    main()
