"""Settings in a TOML file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from serving.config_file import MOST_BYTES, key_of, line_of, read_file
from serving.setting import Kind, Setting, settings_of
from serving.setting_kinds import DURATION, FLAG, PATH, PORT, TEXT, read_text

LIST = Kind(read_text, "NAME", lambda _key, text: tuple(text.split(",")))


@dataclass(frozen=True)
class Some:
    home: Annotated[Path, Setting(PATH, "Home.")]
    host: Annotated[str, Setting(TEXT, "Host.")] = "here"
    port: Annotated[int, Setting(PORT, "Port.")] = 1
    stall_s: Annotated[float, Setting(DURATION, "Stall.", "--stall")] = 2.0
    is_open: Annotated[bool, Setting(FLAG, "Open.", "--open/--no-open")] = False
    names: Annotated[tuple[str, ...], Setting(LIST, "Names.", "--name")] = ()


def file(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


def problems(folder: Path, text: str) -> list[str]:
    path = file(folder, text)
    return [each.removeprefix(f"{path}:") for each in read_file(path, Some).problems]


def test_a_setting_is_called_as_its_option() -> None:
    declared = settings_of(Some)
    assert [key_of(name, declared[name]) for name in declared] == [
        *("home", "host", "port", "stall", "open", "name")
    ]


def test_each_value_is_read_as_the_option_reads_it(tmp_path: Path) -> None:
    text = 'host = "a"\nport = 9\n\nstall = "1m"\nopen = true\nname = ["x", "y"]\n'
    found = read_file(file(tmp_path, text), Some)
    assert found.problems == ()
    assert found.values == {
        "host": "a",
        "port": 9,
        "stall_s": 60.0,
        "is_open": True,
        "names": ("x", "y"),
    }
    assert found.lines == {"host": 1, "port": 2, "stall_s": 4, "is_open": 5, "names": 6}


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("stall = 30", "stall_s", 30.0),
        ("stall = 1.5", "stall_s", 1.5),
        ('open = "off"', "is_open", False),
        ('name = "x"', "names", ("x",)),
        ("name = []", "names", ()),
        ('"port" = 5', "port", 5),
    ],
)
def test_values_may_be_written_as_people_do(
    tmp_path: Path, text: str, name: str, value: object
) -> None:
    found = read_file(file(tmp_path, text), Some)
    assert (found.problems, found.values) == ((), {name: value})


def test_every_mistake_is_named_with_its_line(tmp_path: Path) -> None:
    text = (
        "# one\n"
        "port = 70000\n"
        "prot = 1\n"
        "stall-s = 2\n"
        "\n"
        'open = "maybe"\n'
        "host = [1]\n"
        "stall = 2026-01-01\n"
        "zebra = 1\n"
        "[name]\n"
        "x = 1\n"
    )
    assert problems(tmp_path, text) == [
        "2: port must be a port number from 0 to 65535, not '70000'.",
        "3: prot is not a setting; did you mean port?",
        "4: stall-s is not a setting; did you mean stall?",
        "6: open must be on or off, not 'maybe'.",
        "7: host has one value, not a list.",
        "8: stall has one value, not a date or a time.",
        "9: zebra is not a setting.",
        "10: name has one value, not a table.",
    ]


def test_the_home_is_not_set_in_the_file_that_is_found_by_it(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, 'home = "/x"')
    assert found.startswith("1: home is not set in a file")


def test_a_file_that_is_no_toml_is_named_with_the_line(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "port = 1\nhost = \n")
    assert found.startswith("2: it is no TOML: ") and "column" not in found
    assert "(at line" not in found and "no TOML" in problems(tmp_path, "port = 1\nport = 2\n")[0]


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    def only(path: Path) -> str:
        (found,) = read_file(path, Some).problems
        return found

    assert "No such file" in only(tmp_path / "none")
    assert "cannot be read" in only(tmp_path)
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe")
    assert "UTF-8" in only(path)
    path.write_text("#" * (MOST_BYTES + 1))
    assert "too large" in only(path)
    path.write_text(f"host = {'[' * 100_000}")
    assert only(path)


def test_a_line_within_a_text_is_not_that_of_a_setting() -> None:
    text = "a = \"\"\"\nport = 1\n\"\"\"\nb = '''x'''\nport = 2\n[[other]]\n[ table . x ]\n"
    assert [line_of(text, key) for key in ("port", "other", "table", "none")] == [5, 6, 7, 1]
