"""Settings that are declared once: their options, variables and help texts."""

import inspect
from dataclasses import dataclass, fields
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

import node.settings
import router.settings
from serving.setting import Kind, Setting, help_of, option_of, read_variable, settings_of
from serving.terminal.setting_options import with_settings


class Wrong(Exception):
    pass


def _number(key: str, text: str) -> int:
    if not text.isdecimal():
        raise Wrong(f"{key}: {text}")
    return int(text)


NUMBER = Kind(_number, "N", range="0 and more")
NUMBERS = Kind(
    _number, "N", lambda key, text: tuple(_number(key, each) for each in text.split(","))
)
FLAG = Kind(lambda _key, text: text == "on", "", is_flag=True)


@dataclass(frozen=True)
class Few:
    port: Annotated[int, Setting(NUMBER, "Port.")] = 7
    limit: Annotated[int | None, Setting(NUMBER, "Limit.", "--most", "auto", "BYTES")] = None
    rows: Annotated[tuple[int, ...], Setting(NUMBERS, "Rows.")] = ()
    open: Annotated[bool, Setting(FLAG, "Open.", "--open/--closed")] = False


def test_a_command_may_have_some_settings_only() -> None:
    @with_settings(Few, only=("rows", "port"))
    def command(**_given: Any) -> None: ...

    assert [*inspect.signature(command).parameters] == ["port", "rows", "config"]

    @with_settings(Few, without=("limit", "open", "config"))
    def other(**_given: Any) -> None: ...

    assert [*inspect.signature(other).parameters] == ["port", "rows"]


@pytest.mark.parametrize("settings", [node.settings.Settings, router.settings.Settings])
def test_every_field_declares_an_option_of_its_own(settings: type[Any]) -> None:
    declared = settings_of(settings)
    assert list(declared) == [field.name for field in fields(settings)]
    options = [option_of(name, each) for name, each in declared.items()]
    assert len({*options}) == len(options)


def test_a_help_text_has_meaning_range_and_default() -> None:
    assert help_of(Few, "port") == "Port. Allowed: 0 and more. Default: 7."
    assert help_of(Few, "limit") == "Limit. Allowed: 0 and more. Default: auto."
    assert help_of(Few, "rows") == "Rows. Repeatable."
    assert help_of(Few, "open") == "Open."


def test_a_command_gets_what_is_given_and_none_for_the_rest() -> None:
    app, seen = typer.Typer(), list[dict[str, Any]]()

    @app.command()
    @with_settings(Few, without=("port",))
    def run(*, own: bool = False, **given: Any) -> None:
        seen.append({"own": own, **given})

    arguments = ["--most", "5", "--rows", "1", "--rows", "2", "--closed", "--own"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert CliRunner().invoke(app, []).exit_code == 0
    given, nothing = seen
    assert (given["own"], given["limit"], list(given["rows"]), given["open"]) == (
        True,
        5,
        [1, 2],
        False,
    )
    assert not any(nothing.values())
    assert CliRunner().invoke(app, ["--port", "1"]).exit_code == 2


def test_an_error_names_the_option_or_the_variable() -> None:
    app = typer.Typer()

    @app.command()
    @with_settings(Few)
    def run(**given: Any) -> None:
        assert given

    result = CliRunner().invoke(app, ["--most", "x"])
    assert isinstance(result.exception, Wrong)
    assert str(result.exception) == "--most: x"
    rows = settings_of(Few)["rows"]
    assert read_variable(rows, "ROWS", "1,2") == (1, 2)
    with pytest.raises(Wrong, match="ROWS: x"):
        read_variable(rows, "ROWS", "1,x")
