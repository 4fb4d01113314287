from pathlib import Path

import pytest

from serving.whole_file import written_whole


def test_a_file_gets_its_name_once_it_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "a"
    with written_whole(file, replace=False) as partial:
        partial.write_text("new")
        assert not file.exists()
        assert partial.stat().st_mode & 0o777 == 0o600
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_is_not_completed_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("old")
    with pytest.raises(KeyboardInterrupt), written_whole(file, replace=True) as partial:
        partial.write_text("ne")
        raise KeyboardInterrupt
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_is_replaced_only_if_that_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("old")
    with pytest.raises(FileExistsError), written_whole(file, replace=False):
        raise AssertionError("it began")
    with written_whole(file, replace=True) as partial:
        partial.write_text("new")
    assert file.read_text() == "new"


def test_a_file_that_somebody_else_makes_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "a"
    with pytest.raises(FileExistsError), written_whole(file, replace=False) as partial:
        partial.write_text("mine")
        file.write_text("theirs")
    assert file.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), written_whole(tmp_path, replace=True):
        raise AssertionError("it began")
