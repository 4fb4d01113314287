"""The sources as a graph: which module imports which, folder by folder."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("router", "node", "registry", "serving", "migrations")


def source_files() -> list[Path]:
    """Every module of the product, in the order of their names."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imports() -> dict[str, set[str]]:
    """By module, the modules of ours that it imports, wherever in its code."""
    names = {module_of(path) for path in source_files() if path.name != "__init__.py"}
    found: dict[str, set[str]] = {name: set() for name in names}
    for path in source_files():
        if path.name == "__init__.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            found[module_of(path)].update(name for name in _imported(node) if name in names)
    return found


def reached(modules: Mapping[str, Iterable[str]], first: Iterable[str]) -> set[str]:
    """`first` and every module that they import, directly or not."""
    found: set[str] = set()
    rest = list(first)
    while rest:
        module = rest.pop()
        if module not in found:
            found.add(module)
            rest.extend(modules[module])
    return found


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
    return []


def folder_graph(modules: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """By folder, the folders that it imports. The files of a folder that has folders in it count
    singly: they are its attic and its cellar."""
    parents = {
        folder.rpartition(".")[0] for folder in (each.rpartition(".")[0] for each in modules)
    }

    def place(module: str) -> str:
        folder = module.rpartition(".")[0]
        return module if folder in parents or not folder else folder

    graph: dict[str, set[str]] = defaultdict(set)
    for module, imported in modules.items():
        own = place(module)
        graph[own].update(place(each) for each in imported if place(each) != own)
    return dict(graph)


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Some folders that import each other in turn; empty where there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []
