"""Settings from options, variables, a file and defaults."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from serving.setting import BadSetting, Environment, Setting
from serving.setting_kinds import PATH, PORT, TEXT
from serving.setting_sources import Gathered, Sources


@dataclass(frozen=True)
class Some:
    home: Annotated[Path, Setting(PATH, "Home.")]
    host: Annotated[str, Setting(TEXT, "Host.")] = "here"
    port: Annotated[int, Setting(PORT, "Port.")] = 1


PRODUCT = Environment(Some, "some", "MLX_FLEET_SOME_", "MLX_FLEET_OTHER_", ("config",))


def gather(own_home: Path, variables: dict[str, str] | None = None, **options: Any) -> Gathered:
    given = {f"MLX_FLEET_SOME_{name}": text for name, text in (variables or {}).items()}
    return Sources(PRODUCT, options, given, own_home).gather()


def sources(found: Gathered) -> dict[str, str]:
    return {name: each.source for name, each in found.values.items()}


def test_an_option_wins_over_a_variable_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('\nhost = "file"\nport = 5\n')
    found = gather(tmp_path)
    assert sources(found) == {"home": "default", "host": f"{file}:2", "port": f"{file}:3"}
    assert found.file == file
    found = gather(tmp_path, {"PORT": "6", "HOST": "variable"}, port=7)
    assert {name: each.value for name, each in found.values.items()} == {
        "home": tmp_path,
        "host": "variable",
        "port": 7,
    }
    assert sources(found) == {
        "home": "default",
        "host": "MLX_FLEET_SOME_HOST",
        "port": "--port",
    }


def test_without_a_file_no_reader_of_files_is_imported(tmp_path: Path) -> None:
    """It would make every command later."""
    code = (
        "import sys\n"
        "from router.settings import read_settings\n"
        "read_settings({})\n"
        "sys.exit('tomllib' in sys.modules)"
    )
    environ = {"PATH": os.environ["PATH"], "MLX_FLEET_HOME": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], env=environ, timeout=60).returncode == 0


def test_without_a_file_there_are_defaults(tmp_path: Path) -> None:
    found = gather(tmp_path)
    assert (found.file, set(sources(found).values())) == (None, {"default"})
    assert found.values["port"].value == 1


@pytest.mark.parametrize("how", ["option", "variable"])
def test_the_file_is_that_of_the_home_in_use(tmp_path: Path, how: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.toml").write_text("port = 5\n")
    found = (
        gather(tmp_path, home=other) if how == "option" else gather(tmp_path, {"HOME": str(other)})
    )
    assert (found.values["home"].value, found.values["port"].value) == (other, 5)


@pytest.mark.parametrize("how", ["option", "variable"])
def test_another_file_may_be_named_and_has_to_exist(tmp_path: Path, how: str) -> None:
    (tmp_path / "config.toml").write_text("port = 4\n")

    def of(path: Path) -> Gathered:
        if how == "option":
            return gather(tmp_path, {"CONFIG": "/nowhere"}, config=path)
        return gather(tmp_path, {"CONFIG": str(path)})

    file = tmp_path / "mine.toml"
    assert "No such file" in of(file).problems[0]
    file.write_text("port = 5\n")
    assert of(file).values["port"].value == 5
    with pytest.raises(BadSetting, match="must be a path"):
        gather(tmp_path, config="")


def test_all_that_is_wrong_is_told_and_a_start_names_the_first(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("prot = 4\nhots = 1\n")
    found = gather(tmp_path, {"PORT": "x", "PROT": "1", "HOTS": "1", "ZEBRA": "1"})
    assert [each.partition(":")[0].partition(" ")[0] for each in found.problems] == [
        "MLX_FLEET_SOME_HOTS",
        "MLX_FLEET_SOME_PROT",
        "MLX_FLEET_SOME_PORT",
        "MLX_FLEET_SOME_ZEBRA",
        str(tmp_path / "config.toml"),
        str(tmp_path / "config.toml"),
    ]
    with pytest.raises(BadSetting, match=r"HOTS is not.*5 more: `some config check` lists all"):
        found.need_valid()
    gather(tmp_path / "none").need_valid()
