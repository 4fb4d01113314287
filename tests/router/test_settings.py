from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from router.errors import StartError
from router.settings import Settings, default_home, read_environment
from serving.stay_awake import StayAwake

PREFIX = "MLX_FLEET_ROUTER_"


def test_each_setting_can_be_set_by_the_environment() -> None:
    given = {
        "home": "/h",
        "host": "::1",
        "port": "0",
        "registry_url": "sqlite:///x",
        "allow_plain_http": "yes",
        "log_requests": "ON",
        "log_level": "Debug",
        "log_format": "json",
        "log_file": "/r.log",
        "otel_endpoint": "http://localhost:4318",
        "stream_keepalive_s": "2.5",
        "queue_limit": "64",
        "promote_after_s": "7.5",
        "stall_s": "2m30s",
        "load_timeout_s": "10m",
        "first_token_timeout_s": "300.5",
        "stay_awake": "never",
        "audit_entries": "500",
        "discovery": "off",
        "tls_cert": "/c.pem",
        "tls_key": "/k.pem",
        "exit_on_stdin_eof": "1",
    }
    assert set(given) == {field.name for field in fields(Settings)}
    read = read_environment({PREFIX + name.upper(): text for name, text in given.items()})
    assert read == {
        "home": Path("/h"),
        "host": "::1",
        "port": 0,
        "registry_url": "sqlite:///x",
        "allow_plain_http": True,
        "log_requests": True,
        "log_level": "debug",
        "log_format": "json",
        "log_file": Path("/r.log"),
        "otel_endpoint": "http://localhost:4318",
        "stream_keepalive_s": 2.5,
        "queue_limit": 64,
        "promote_after_s": 7.5,
        "stall_s": 150.0,
        "load_timeout_s": 600.0,
        "first_token_timeout_s": 300.5,
        "stay_awake": StayAwake.NEVER,
        "audit_entries": 500,
        "discovery": False,
        "tls_cert": Path("/c.pem"),
        "tls_key": Path("/k.pem"),
        "exit_on_stdin_eof": True,
    }


def test_other_variables_are_passed_over() -> None:
    assert read_environment({"PATH": "/bin", "MLX_FLEET_NODE_PORT": "x"}) == {}


def test_without_a_mapping_the_process_s_environment_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(PREFIX + "PORT", "1234")
    monkeypatch.setenv("MLX_FLEET_HOME", str(tmp_path))
    assert read_environment()["port"] == 1234
    assert default_home() == tmp_path / "router"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PORT", "65536"),
        ("PORT", "-1"),
        ("PORT", "http"),
        ("PORT", ""),
        ("STREAM_KEEPALIVE_S", "soon"),
        ("STREAM_KEEPALIVE_S", "0"),
        ("STREAM_KEEPALIVE_S", "nan"),
        ("STREAM_KEEPALIVE_S", "inf"),
        ("STREAM_KEEPALIVE_S", "3600"),
        ("STREAM_KEEPALIVE_S", "1h"),
        ("QUEUE_LIMIT", "0"),
        ("QUEUE_LIMIT", "2.5"),
        ("QUEUE_LIMIT", "100001"),
        ("PROMOTE_AFTER_S", "0"),
        ("LOG_REQUESTS", "maybe"),
        ("LOG_LEVEL", "loud"),
        ("LOG_FORMAT", "JSON5"),
        ("LOG_FILE", ""),
        ("ALLOW_PLAIN_HTTP", "2"),
        ("EXIT_ON_STDIN_EOF", "y e s"),
        ("HOME", ""),
    ],
)
def test_a_bad_value_names_key_and_value(name: str, text: str) -> None:
    with pytest.raises(StartError) as raised:
        read_environment({PREFIX + name: text})
    assert PREFIX + name in raised.value.message
    assert repr(text) in raised.value.message


@pytest.mark.parametrize("text", ["0", "false", "No", "off", ""])
def test_a_flag_can_be_switched_off(text: str) -> None:
    assert read_environment({PREFIX + "LOG_REQUESTS": text}) == {"log_requests": False}


def test_an_unknown_setting_stops_the_start() -> None:
    with pytest.raises(StartError, match="MLX_FLEET_ROUTER_PROT is not a setting"):
        read_environment({PREFIX + "PROT": "1"})


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("MLX_FLEET_ROUTR_PORT", "MLX_FLEET_ROUTER_PORT"),
        ("MLX_FLEET_HOEM", "MLX_FLEET_HOME"),
        ("MLX_FLEET_KYE", "MLX_FLEET_KEY"),
    ],
)
def test_a_variable_that_is_nearly_ours_stops_the_start(wrong: str, right: str) -> None:
    with pytest.raises(StartError, match=f"{wrong} is not a setting; did you mean {right}?"):
        read_environment({wrong: "1"})


@pytest.mark.parametrize("name", ["NODE_PROT", "SMOLLM2", "GGUF", "SHARED", "SOAK", "TEST_DEVICE"])
def test_variables_of_others_that_begin_alike_are_theirs(name: str) -> None:
    assert read_environment({f"MLX_FLEET_{name}": "1"}) == {}


def test_files_lie_in_the_home_folder_and_the_bind_is_loopback() -> None:
    settings = Settings(home=Path("/h"))
    assert settings.registry == "/h/registry.db"
    assert Settings(home=Path("/h"), registry_url="sqlite:///x").registry == "sqlite:///x"
    assert settings.admin_key_file == Path("/h/admin.key")
    assert settings.first_key_file == Path("/h/first.key")
    assert (settings.host, settings.allow_plain_http) == ("127.0.0.1", False)


def test_the_default_home_is_in_the_user_s_folder() -> None:
    assert default_home({}) == Path.home() / ".mlx-fleet" / "router"
    assert default_home({"MLX_FLEET_HOME": ""}) == Path.home() / ".mlx-fleet" / "router"


def test_a_tilde_means_the_user_s_folder() -> None:
    assert read_environment({PREFIX + "HOME": "~/x"}) == {"home": Path.home() / "x"}
