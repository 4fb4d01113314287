"""Loading a fast BLAS, where there is one."""

import sys

import pytest

from node.engine.model.blas import load_fast_blas


def test_does_nothing_on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert load_fast_blas() is None


def test_does_without_where_no_library_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("node.engine.model.blas._PATHS", ("/nowhere/libblas.so.3",))
    assert load_fast_blas() is None
