"""`config init`, `check` and `show`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from serving.config_commands import ConfigCommands
from serving.errors import CannotStart
from serving.setting import Environment, Kind, Setting
from serving.setting_kinds import DURATION, PATH, TEXT, read_text
from serving.setting_sources import Gathered, Sources

NAMES = Kind(read_text, "NAME", lambda _key, text: tuple(text.split(",")), example="x")


@dataclass(frozen=True)
class Some:
    home: Annotated[Path, Setting(PATH, "Home.")]
    stall_s: Annotated[float, Setting(DURATION, "Stall.", "--stall", is_live=True)] = 60.0
    names: Annotated[tuple[str, ...], Setting(NAMES, "Names.", "--name")] = ()
    token: Annotated[str, Setting(TEXT, "Token.", is_secret=True, default="none")] = ""


PRODUCT = Environment(Some, "some", "MLX_FLEET_SOME_", "MLX_FLEET_OTHER_")
SECTIONS = (("First", ("home", "stall_s")), ("Second", ("names", "token")))


def commands(own_home: Path, **options: Any) -> tuple[ConfigCommands, Gathered]:
    sources = Sources(PRODUCT, options, {}, own_home)
    return ConfigCommands(PRODUCT, SECTIONS, sources), sources.gather()


def test_a_file_is_made_once_and_is_private(tmp_path: Path) -> None:
    home = tmp_path / "new"
    path = commands(home)[0].init(force=False)
    assert path == home / "config.toml"
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    assert '# stall = "1m"' in text and "Applied at a reload." in text
    assert "# --- Second ---" in text and '# name = ["x"]' in text
    path.write_text("mine")
    with pytest.raises(CannotStart, match="--force replaces it"):
        commands(tmp_path, home=home)[0].init(force=False)
    assert path.read_text() == "mine"
    broken, _ = commands(home)
    assert broken.init(force=True).read_text() == text


def test_a_file_may_be_made_elsewhere(tmp_path: Path) -> None:
    assert commands(tmp_path, config=tmp_path / "x.toml")[0].init(force=False).name == "x.toml"
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotStart, match="cannot be written"):
        commands(tmp_path, config=tmp_path / "file" / "x.toml")[0].init(force=False)


def test_each_value_is_shown_with_its_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('stall = 90\ntoken = "secret"\n')
    own, gathered = commands(tmp_path, names=("a", "b"))
    assert own.show(gathered, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert f'# home = "{tmp_path}"' in lines
    stall, names = 'stall = "90s"', 'name = ["a", "b"]'
    assert f"{stall:<44}  # {file}:1" in lines
    assert f"{names:<44}  # --name" in lines
    assert own.show(gathered, as_json=True)
    told = capsys.readouterr().out
    assert "secret" not in told and "(hidden)" in told
    rows = {row["name"]: row for row in json.loads(told)}
    assert rows["stall"] == {"name": "stall", "value": "90s", "source": f"{file}:1"}
    assert rows["home"]["source"] == "default"


def test_a_default_without_a_value_is_shown_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, gathered = commands(tmp_path)
    own.show(gathered, as_json=False)
    assert "# token: none\n" in capsys.readouterr().out


def test_a_check_names_all_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, gathered = commands(tmp_path)
    assert own.check(gathered, ())
    assert "No mistakes; 0 of 4 settings are set (there is no file)." in capsys.readouterr().out
    (tmp_path / "config.toml").write_text("stal = 1\nstall = 'x'\n")
    own, gathered = commands(tmp_path)
    assert not own.check(gathered, ["And more."])
    told = capsys.readouterr()
    assert len(told.err.splitlines()) == 3 and "config.toml:1: stal is" in told.err
    assert not own.show(gathered, as_json=True)
    assert capsys.readouterr().out == ""
