"""The shape that keeps the code readable: sizes, names, and who may write what."""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests import house
from tests.sources import (
    ROOT,
    circle,
    folder_graph,
    imports,
    module_of,
    reached,
    source_files,
)

SOURCES = source_files()
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MOST_FILES = 25
"""In a folder; but a file for each model family may be as many as there are families."""
MANY_FILES = {ROOT / "node/parsing/formats"}
ENGINE_IMPORTS = (
    "node.engine.",
    "node.ipc.",
    "node.models.model_files",
    "node.models.safetensors_header",
    "node.models.saved_hashes",
    "node.parsing.",
    "node.protocol.",
)
"""Modules of the node that an engine's modules import: what crosses its socket, formats, and
readers of model files."""
ENGINE_FOUNDATION = ("node.errors", "node.setting_kinds", "node.settings")
"""Modules that those import in turn."""
PURE = re.compile(r"\bPure\b|\bNo (clock|I/O)\b")
FRAGMENTS = (
    *("Of ", "As ", "What ", "Whose ", "Whether ", "Why ", "Those ", "How "),
    *("By each ", "Until the end "),
)
"""Beginnings of a docstring that is no sentence."""
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def _functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text())
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_no_source_file_is_longer_than_400_lines() -> None:
    assert [f"{p.relative_to(ROOT)}" for p in SOURCES if len(_lines(p)) > 400] == []


def test_no_test_file_is_longer_than_600_lines() -> None:
    assert [f"{p.relative_to(ROOT)}" for p in TESTS if len(_lines(p)) > 600] == []


def test_no_function_is_longer_than_50_lines() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{function.name}"
        for path in SOURCES
        for function in _functions(path)
        if (function.end_lineno or 0) - function.lineno + 1 > 50
    ]
    assert long == []


def test_no_file_is_a_drawer_for_anything() -> None:
    assert [p for p in SOURCES + TESTS if p.stem in FORBIDDEN_NAMES] == []


def test_no_folder_has_too_many_files() -> None:
    counts = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    full = [str(folder) for folder, count in counts.items() if count > MOST_FILES]
    assert set(full) <= {str(folder) for folder in MANY_FILES}


def test_no_two_folders_import_each_other() -> None:
    assert circle(folder_graph(imports())) == []


def test_a_circle_of_folders_is_found() -> None:
    modules = {"a.x": {"b.y"}, "b.y": {"c.z"}, "c.z": {"a.x"}}
    assert set(circle(folder_graph(modules))) == {"a", "b", "c"}
    apart = {"a.x": {"a.b.y"}, "a.b.y": {"a.z"}, "a.z": set[str]()}
    assert circle(folder_graph(apart)) == []


def test_no_class_has_too_many_methods() -> None:
    assert house.crowded_classes(house.sources()) == {}


def test_no_class_name_occurs_twice_in_a_package() -> None:
    assert house.repeated_classes(house.sources()) == {}


def test_a_docstring_can_be_read_without_the_line_above_it() -> None:
    fragments = [
        f"{source.name}: {text.splitlines()[0]}"
        for source in (*house.sources(), *map(house.Source, TESTS))
        for text in source.docstrings()
        if text.startswith(FRAGMENTS)
    ]
    assert fragments == []


def test_an_engine_imports_nothing_else_of_its_node() -> None:
    modules = imports()
    engine = {name for name in modules if name.startswith("node.engine.")}
    others = {
        f"{module} -> {imported}"
        for module in reached(modules, engine)
        for imported in modules[module]
        if imported.startswith("node.")
        and not imported.startswith(ENGINE_IMPORTS)
        and (module in engine or imported not in ENGINE_FOUNDATION)
    }
    assert others == set()


def test_a_module_that_is_pure_is_in_the_contract_of_those() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (listed,) = [
        tuple(each["source_modules"])
        for each in contracts["contracts"]
        if each["name"].startswith("decisions are pure")
    ]
    pure = {
        module_of(path)
        for path in SOURCES
        if PURE.search(ast.get_docstring(ast.parse(path.read_text())) or "")
    }
    missing = {each for each in pure if not f"{each}.".startswith(tuple(f"{m}." for m in listed))}
    assert pure and missing == set()


def test_every_package_init_is_empty() -> None:
    assert [p for p in SOURCES if p.name == "__init__.py" and p.read_text().strip()] == []


@pytest.mark.parametrize(
    ("needle", "allowed"),
    [
        # Everything else frames its events with these functions.
        ("\\ndata: ", {"node/protocol/event_stream.py"}),
        ('b"data: ', {"node/protocol/event_stream.py"}),
        ("os.environ", {"node/settings.py", "router/settings.py", "serving/logs/logs.py"}),
        ("os.getenv", set()),
        ("import_module", {"node/engine/worker.py", "node/parsing/registry.py"}),
        # An error's class is no word for people; `serving.terminal.error_text` has some.
        ("type(error).__name__", {"node/commands/mac_settings.py", "node/engine/probe/facts.py"}),
        ("type(exc).__name__", set()),
        ("{error!r}", set()),
        ("{exc!r}", set()),
    ],
)
def test_only_these_files_do_it(needle: str, allowed: set[str]) -> None:
    users = {str(p.relative_to(ROOT)) for p in SOURCES if needle in p.read_text()}
    assert users <= allowed
