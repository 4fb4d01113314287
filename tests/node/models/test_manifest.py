"""Tests the manifest of a model's files, with hashes that are kept."""

import hashlib
import os
from pathlib import Path

import pytest

from node.models.manifest import MANIFESTS_FOLDER, Manifests, is_model_file, model_files
from node.models.saved_hashes import HashingStopped
from node.models.store import ModelEntry, read_entry
from tests.node.model_folders import CONFIG, make_model, safetensors


def entry_of(folder: Path, name: str = "org/tiny") -> ModelEntry:
    return read_entry(folder, name)


def never() -> bool:
    return False


def always() -> bool:
    return True


def test_a_models_files_are_weights_configuration_and_tokenizer(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    for name in ("mlx-fleet.json", "model.py", "README.md", ".hidden.json", ".partial"):
        (folder / name).touch()
    for name in ("1_Pooling", ".cache"):
        (folder / name).mkdir()
        (folder / name / "config.json").touch()
    assert sorted(model_files(folder)) == [
        "1_Pooling/config.json",
        "config.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize(
    "path",
    [
        "a.py",
        "mlx-fleet.json",
        ".x.json",
        ".cache/a.json",
        "a/.b/c.txt",
        "\x1b[2Ja.json",
        "a\nb.txt",
    ],
)
def test_code_and_what_is_hidden_belongs_to_no_model(path: str) -> None:
    assert not is_model_file(path)


def test_the_hashes_are_those_of_the_files(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m", b"weights")
    files = Manifests(tmp_path).of(entry_of(folder), never)
    assert [(each.path, each.size_bytes, each.sha256) for each in files] == [
        ("config.json", len(CONFIG), hashlib.sha256(CONFIG).hexdigest()),
        (
            "model.safetensors",
            len(safetensors(b"weights")),
            hashlib.sha256(safetensors(b"weights")).hexdigest(),
        ),
    ]


def test_only_what_has_changed_is_hashed_again(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    entry = entry_of(folder)
    first = Manifests(tmp_path).of(entry, never)
    # Nothing is read, or it would stop.
    assert Manifests(tmp_path).of(entry, always) == first
    os.utime(folder / "config.json", ns=(1, 1))
    with pytest.raises(HashingStopped):
        Manifests(tmp_path).of(entry, always)
    assert Manifests(tmp_path).of(entry, never) == first


def test_what_a_copy_was_checked_against_is_kept(tmp_path: Path) -> None:
    entry = entry_of(make_model(tmp_path / "m"))
    files = Manifests(tmp_path / "elsewhere").of(entry, never)
    Manifests(tmp_path).save(entry, files)
    assert Manifests(tmp_path).of(entry, always) == files


def test_another_folder_of_that_name_is_hashed_for_itself(tmp_path: Path) -> None:
    first, second = make_model(tmp_path / "a", b"1"), make_model(tmp_path / "b", b"2")
    for file in (*first.iterdir(), *second.iterdir()):
        os.utime(file, ns=(1, 1))
    before = Manifests(tmp_path).of(entry_of(first), never)
    assert Manifests(tmp_path).of(entry_of(second), never) != before


def test_hashes_of_a_model_that_is_gone_are_forgotten(tmp_path: Path) -> None:
    gone, here = make_model(tmp_path / "gone"), make_model(tmp_path / "here")
    Manifests(tmp_path).of(entry_of(gone, "gone"), never)
    for file in gone.iterdir():
        file.unlink()
    gone.rmdir()
    (tmp_path / MANIFESTS_FOLDER / "torn.json").write_text("{")
    Manifests(tmp_path).of(entry_of(here, "here"), never)
    assert sorted(file.name for file in (tmp_path / MANIFESTS_FOLDER).iterdir()) == [
        "here.json",
        "torn.json",
    ]
