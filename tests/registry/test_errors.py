from __future__ import annotations

from pathlib import Path

import pytest

from registry.errors import (
    Conflict,
    NewerBackup,
    NewerRegistry,
    NoBackup,
    NotFound,
    ReadOnlyRegistry,
    RefusedRow,
    RegistryClosed,
    RegistryError,
    RegistryFailed,
    RegistryFull,
    RegistryLocked,
    RegistryUnwritable,
    UnsupportedUrl,
)

PATH = Path("/fleet/registry.db")
EVERY = [
    RegistryError(),
    UnsupportedUrl("the scheme 'postgresql'"),
    NewerRegistry("9999"),
    NewerBackup(PATH, "9999"),
    NoBackup(PATH, "it is empty"),
    ReadOnlyRegistry(PATH, "Permission denied"),
    RefusedRow(),
    RegistryLocked(PATH),
    RegistryLocked(PATH, 42),
    RegistryClosed(),
    RegistryFailed(PATH, "disk I/O error"),
    RegistryFull(PATH),
    RegistryUnwritable(),
    Conflict("node name", "mini"),
    NotFound("node", "mini"),
]


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_every_message_is_one_sentence_or_more(error: RegistryError) -> None:
    assert isinstance(error, RegistryError)
    assert str(error)[0].isupper() or str(error).startswith("mlx-fleet")
    assert str(error).endswith(".")
    assert "\n" not in str(error)


def test_the_docstring_is_the_default_message() -> None:
    assert str(RegistryClosed()) == RegistryClosed.__doc__
    assert str(RegistryError("Said.")) == "Said."


def tree(root: type[RegistryError]) -> list[type[RegistryError]]:
    return [root, *(each for child in root.__subclasses__() for each in tree(child))]


def test_every_class_of_the_tree_is_covered_here() -> None:
    assert set(tree(RegistryError)) == {type(error) for error in EVERY}


def test_conflict_and_not_found_carry_what_and_name() -> None:
    conflict, missing = Conflict("node url", "http://mini"), NotFound("alias", "fast")
    assert (conflict.what, conflict.name) == ("node url", "http://mini")
    assert (missing.what, missing.name) == ("alias", "fast")
    assert str(conflict) == "The node url 'http://mini' is already taken; choose another."


def test_a_locked_registry_names_the_holder_only_when_known() -> None:
    assert "in use by process 42" in str(RegistryLocked(PATH, 42))
    assert "in use by another process" in str(RegistryLocked(PATH))
