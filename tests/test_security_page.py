"""Each promise of docs/guides/security.md names tests that exist."""

import ast
import re

import pytest

from tests.sources import ROOT

PAGE = (ROOT / "docs/guides/security.md").read_text()
NAMED = re.compile(r"^- `(tests/\S+\.py)::(\w+)`$", re.MULTILINE)
PROMISE = re.compile(r"^\*\*[^*]+\*\*", re.MULTILINE)


def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {each.name for each in tree.body if isinstance(each, functions)}


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED.findall(PAGE))))
def test_a_test_that_keeps_a_promise_exists(path: str, name: str) -> None:
    assert name.startswith("test_") and name in names_in(path)


def test_every_promise_names_a_test() -> None:
    starts = [found.start() for found in PROMISE.finditer(PAGE)]
    promises = [
        PAGE[start:end] for start, end in zip(starts, [*starts[1:], len(PAGE)], strict=True)
    ]
    assert len(promises) > 15
    assert [each.splitlines()[0] for each in promises if not NAMED.search(each)] == []


def test_every_named_test_is_in_a_list() -> None:
    assert len(NAMED.findall(PAGE)) == PAGE.count(".py::")
