"""The command of a service does not depend on the shell and the folder of its installation."""

import sys
from pathlib import Path

import pytest

import node.settings
import router.settings
from serving.errors import CannotStart
from serving.services.description import User, label_of, refuse_unwritable
from serving.services.machine import ServiceMachine
from serving.services.program import home_of, service_of
from serving.setting import option_of, settings_of
from tests.serving.services.stands import Commands, program_in, service_in


@pytest.fixture
def machine(tmp_path: Path) -> ServiceMachine:
    return Commands().machine(User("anna", 501, tmp_path))


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "router").write_text("")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.chdir(tmp_path)


def test_options_and_variables_become_options(tmp_path: Path, machine: ServiceMachine) -> None:
    program = program_in(tmp_path / "r", {"MLX_FLEET_SOME_PORT": "82", "PATH": "/x"}, quick=False)
    service = service_of(program, machine)
    assert service.arguments == (
        *(f"{tmp_path}/bin/router", "serve", "--home", f"{tmp_path}/r"),
        *("--port", "82", "--no-quick"),
        *("--log-file", f"{tmp_path}/r/logs/router.log"),
    )
    assert service.path == f"{tmp_path}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def test_what_stands_in_the_file_stays_there(tmp_path: Path, machine: ServiceMachine) -> None:
    home = tmp_path / "r"
    home.mkdir()
    (home / "config.toml").write_text('port = 83\nlog_file = "/var/log/x"\n')
    service = service_of(program_in(home), machine)
    assert service.arguments[2:] == ("--home", str(home))
    assert service.log_file == Path("/var/log/x")
    (tmp_path / "own.toml").write_text("port = 84\n")
    service = service_of(program_in(home, config=Path("own.toml"), port=85), machine)
    assert service.arguments[4:8] == ("--config", f"{tmp_path}/own.toml", "--port", "85")


def test_paths_are_whole(tmp_path: Path, machine: ServiceMachine) -> None:
    program = program_in(Path("r"), store="a.db", log_file=Path("own.log"))
    service = service_of(program, machine)
    assert service.home == tmp_path / "r" and service.log_file == tmp_path / "own.log"
    assert service.arguments[4:] == (
        *("--store", f"{tmp_path}/a.db", "--log-file", f"{tmp_path}/own.log"),
    )


def test_a_path_in_the_file_that_depends_on_the_folder_is_refused(
    tmp_path: Path, machine: ServiceMachine
) -> None:
    (tmp_path / "config.toml").write_text('port = 1\nstore = "a.db"\n')
    with pytest.raises(CannotStart, match=r"config.toml:2 has the path a.db, which depends"):
        service_of(program_in(tmp_path), machine)


def test_mistakes_are_found_before_there_is_a_service(
    tmp_path: Path, machine: ServiceMachine
) -> None:
    with pytest.raises(CannotStart, match="MLX_FLEET_SOME_PORT must be a port number"):
        service_of(program_in(tmp_path, {"MLX_FLEET_SOME_PORT": "x"}), machine)
    with pytest.raises(CannotStart, match="exit_on_stdin_eof is set .* end at once"):
        service_of(program_in(tmp_path, exit_on_stdin_eof=True), machine)


def test_a_command_that_is_not_installed_is_an_error(
    tmp_path: Path, machine: ServiceMachine
) -> None:
    (tmp_path / "bin" / "router").unlink()
    with pytest.raises(CannotStart, match="There is no command router beside"):
        service_of(program_in(tmp_path), machine)


def test_with_sudo_the_home_of_root_is_not_taken(tmp_path: Path) -> None:
    machine = Commands().machine(User("anna", 501, tmp_path / "anna"), is_root=True)
    program = program_in(tmp_path / "root" / "r")
    with pytest.raises(CannotStart, match="which is not anna's: give --home"):
        home_of(program, program.sources.gather(), machine)
    program = program_in(tmp_path, home=tmp_path / "elsewhere")
    found = home_of(program, program.sources.gather(), machine)
    assert found == tmp_path / "elsewhere"


def test_a_home_other_than_the_usual_one_is_in_the_label(tmp_path: Path) -> None:
    anna = User("anna", 501, tmp_path)
    assert label_of("node-agent", tmp_path / ".mlx-fleet/node", anna) == "mlx-fleet.node-agent"
    assert label_of("router", tmp_path / ".mlx-fleet/router", anna) == "mlx-fleet.router"
    other = label_of("router", tmp_path / "other", anna)
    assert other.startswith("mlx-fleet.router.") and len(other) == len("mlx-fleet.router.") + 8
    assert other != label_of("router", tmp_path / "third", anna)


def test_control_characters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"cannot have 'a\\nb'"):
        refuse_unwritable(service_in(tmp_path, "--name", "a\nb"))


@pytest.mark.parametrize("settings", [node.settings.Settings, router.settings.Settings])
def test_every_setting_is_read_back_from_how_it_is_shown(settings: type) -> None:
    for name, each in settings_of(settings).items():
        kind = each.kind
        texts = [text for text in (each.example or kind.example,) if text]
        if "|" in kind.metavar and "=" not in kind.metavar:
            texts += [word for word in kind.metavar.split("|") if word.islower()]
        for text in texts:
            value = kind.read(name, text)
            option = option_of(name, each)
            assert kind.read(option, kind.show(value)) == value, (name, text)
