"""Model files against the hashes that were recorded when they came."""

import json
from pathlib import Path

import pytest

from node.cli import main
from node.commands.checks import Level
from node.commands.health.hashes import check_hashes
from node.models.pull import pull
from node.models.store import ModelStore
from node.protocol.lifecycle import PullCommand
from tests.node.model_folders import make_model
from tests.node.models.test_pull import ScriptedHub


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """A store with a model that was pulled from a hub."""
    store = ModelStore(tmp_path / "models")
    pull(PullCommand("org/tiny", "org/tiny"), store, lambda _done, _total: None, ScriptedHub)
    return store


def test_a_pull_records_the_hashes_of_all_files(store: ModelStore) -> None:
    (check,) = check_hashes(store)
    assert (check.name, check.level) == ("files of org/tiny", Level.OK)
    assert "All 3 files" in check.sentence


@pytest.mark.parametrize(
    ("name", "level"), [("model.safetensors", Level.FAIL), ("tokenizer.json", Level.WARN)]
)
def test_a_file_that_has_changed_is_named(store: ModelStore, name: str, level: Level) -> None:
    file = store.list()[0].folder / name
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    (check,) = check_hashes(store)
    assert check.level is level
    assert f"{name} has changed" in check.sentence
    assert "node-agent rm org/tiny" in check.advice


def test_a_file_that_is_missing_is_named(store: ModelStore) -> None:
    (store.list()[0].folder / "tokenizer.json").unlink()
    (check,) = check_hashes(store)
    assert (check.level, "tokenizer.json is missing" in check.sentence) == (Level.WARN, True)


def test_what_has_no_record_gets_one(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    folder = make_model(tmp_path / "models" / "own")
    (check,) = check_hashes(store)
    assert (check.level, "unknown" in check.sentence) == (Level.UNKNOWN, True)
    (check,) = check_hashes(store)
    assert check.level is Level.OK
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    (check,) = check_hashes(store)
    assert check.level is Level.FAIL


def test_the_option_adds_them_and_a_damage_is_an_exit_code(
    store: ModelStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def doctor(*more: str) -> tuple[object, dict[str, str]]:
        with pytest.raises(SystemExit) as ended:
            main(["doctor", "--json", "--home", str(tmp_path), "--port", "0", *more])
        checks = json.loads(capsys.readouterr().out)
        return ended.value.code, {check["name"]: check["level"] for check in checks}

    assert "files of org/tiny" not in doctor()[1]
    assert doctor("--hashes")[1]["files of org/tiny"] == "ok"
    file = store.list()[0].folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    code, levels = doctor("--hashes")
    assert (code, levels["files of org/tiny"]) == (1, "fail")
