"""Tests the positions that are kept beside a disk cache, and which of them count after a
restart."""

import datetime
import logging
import stat
from array import array
from pathlib import Path

import pytest

from node.defaults import Defaults
from node.ipc.kv_files import POSITIONS_NAME
from node.prefixes import saved_positions
from node.prefixes.saved_positions import SavedPositions, load_positions, prompt_key, save_positions

DAY = datetime.date(2030, 1, 31)
NEXT_DAY = datetime.date(2030, 2, 1)
KEPT = [
    SavedPositions((1 << 64) - 1, array("Q", [(1 << 64) - 1, 5]), array("I", [0, (1 << 32) - 1])),
    SavedPositions(7, array("Q"), array("I")),
]


def model(folder: Path, template: str = "{{ messages }}") -> Path:
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(template)
    return folder


def key(folder: Path, variables: dict[str, str] | None = None, version: str = "1") -> bytes:
    return prompt_key(folder, Defaults(variables or {}), version, DAY)


def test_what_was_kept_is_found_again(tmp_path: Path) -> None:
    save_positions(tmp_path, b"key", KEPT[:1])
    save_positions(tmp_path, b"key", KEPT)
    assert load_positions(tmp_path, b"key") == KEPT
    assert [path.name for path in tmp_path.iterdir()] == [POSITIONS_NAME]
    assert stat.S_IMODE((tmp_path / POSITIONS_NAME).stat().st_mode) == 0o600


def test_without_a_file_nothing_was_kept(tmp_path: Path) -> None:
    assert load_positions(tmp_path, b"key") == []
    assert load_positions(tmp_path / "none", b"key") == []


def test_what_was_kept_under_another_key_is_void(tmp_path: Path) -> None:
    save_positions(tmp_path, b"key", KEPT)
    assert load_positions(tmp_path, b"another") == []


def test_a_truncated_or_changed_file_is_void_wherever_it_is_truncated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_positions(tmp_path, b"key", KEPT)
    file = tmp_path / POSITIONS_NAME
    data = file.read_bytes()
    for length in range(len(data)):
        file.write_bytes(data[:length])
        assert load_positions(tmp_path, b"key") == []
        file.write_bytes(data[:length] + bytes([data[length] ^ 1]) + data[length + 1 :])
        assert load_positions(tmp_path, b"key") == []
    assert all("are damaged" in each.message for each in caplog.records)
    save_positions(tmp_path, b"key", KEPT)
    assert load_positions(tmp_path, b"key") == KEPT


def test_what_another_version_wrote_is_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(saved_positions, "_VERSION", 2)
        save_positions(tmp_path, b"key", KEPT)
    assert load_positions(tmp_path, b"key") == []


def test_a_folder_that_was_removed_is_not_created_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        save_positions(tmp_path / "gone", b"key", KEPT)
    assert "not saved for the next start" in caplog.text
    assert not (tmp_path / "gone").exists()


def test_an_interrupted_write_keeps_what_was_there(tmp_path: Path) -> None:
    save_positions(tmp_path, b"key", KEPT)
    (tmp_path / POSITIONS_NAME).with_suffix(".tmp").write_bytes(b"half")
    assert load_positions(tmp_path, b"key") == KEPT
    save_positions(tmp_path, b"key", KEPT[1:])
    assert load_positions(tmp_path, b"key") == KEPT[1:]


def test_a_copy_of_a_model_has_the_same_key(tmp_path: Path) -> None:
    assert key(model(tmp_path / "a")) == key(model(tmp_path / "b"))


def test_whatever_changes_the_prompt_changes_the_key(tmp_path: Path) -> None:
    base = model(tmp_path / "base")
    template = model(tmp_path / "template", "{{ messages[0] }}")
    added = model(tmp_path / "added")
    (added / "special_tokens_map.json").write_text("{}")
    named = model(tmp_path / "named")
    (named / "additional_chat_templates").mkdir()
    (named / "additional_chat_templates" / "tool_use.jinja").write_text("")
    keys = [key(each) for each in (base, template, added, named)]
    keys += [key(base, {"effort": "low"}), key(base, {"effort": "high"}), key(base, version="2")]
    assert len(set(keys)) == len(keys)


def test_the_day_counts_where_the_template_shows_it(tmp_path: Path) -> None:
    plain = model(tmp_path / "plain")
    dated = model(tmp_path / "dated", "{{ strftime_now('%d %b') }}")
    for folder, is_same in ((plain, True), (dated, False)):
        keys = {prompt_key(folder, Defaults(), "1", day) for day in (DAY, NEXT_DAY)}
        assert (len(keys) == 1) == is_same


def test_a_template_that_changes_later_is_not_what_this_process_renders(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    before = key(folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0] }}")
    assert key(folder) == before
