"""Tests that modules on the list for compilation contain nothing that mypyc reads otherwise."""

import ast

from tests.compiled import TREE, listed


def test_the_list_names_modules() -> None:
    assert {"router.scheduler.scheduler", "node.protocol.chain.prefix"} <= set(listed())
    assert "router.scheduler.__init__" not in listed()


def test_a_class_with_a_length_has_a_truth_value() -> None:
    # mypyc takes an object of a compiled class for true where it has only a length.
    without = [
        f"{module}:{node.name}"
        for module in listed()
        for node in ast.walk(ast.parse((TREE / f"{module.replace('.', '/')}.py").read_text()))
        if isinstance(node, ast.ClassDef)
        and "__len__" in (names := {getattr(each, "name", "") for each in node.body})
        and "__bool__" not in names
    ]
    assert without == []
