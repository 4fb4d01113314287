"""Settings from options, environment and defaults."""

from pathlib import Path

import pytest

from node.commands import configuration
from node.commands.configuration import (
    ExtraMissing,
    need_extra,
    read_settings,
    start_problems,
)
from node.errors import StartError
from node.hardware import Machine
from node.setting_kinds import read_bytes, read_disk_bytes, read_size_or_share
from node.settings import Settings
from serving.setting import BadSetting
from serving.units import GIB
from tests.node.kernels import PlayedKernel


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12GB", 12 * 10**9),
        ("12 gib", 12 * 1024**3),
        ("1.5G", 1_500_000_000),
        ("512MiB", 512 * 1024**2),
        ("1000", 1000),
    ],
)
def test_reads_sizes(text: str, number: int) -> None:
    assert read_bytes(text) == number


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "12XB", "1e9"])
def test_refuses_what_is_no_size(text: str) -> None:
    with pytest.raises(BadSetting, match="is not a size"):
        read_bytes(text)


@pytest.mark.parametrize("text", ["0%", "101%", "1e9%", "-5%", "%"])
def test_refuses_what_is_no_share(text: str) -> None:
    with pytest.raises(BadSetting):
        read_size_or_share(text)


def test_shares_are_those_of_the_machine_of_its_limit_and_of_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine("M4", 32 * GIB, has_gpu=True)
    monkeypatch.setattr(configuration, "read_machine", lambda _kernel: machine)
    monkeypatch.setattr(configuration, "disk_bytes", lambda folder: {tmp_path: 1000 * GIB}[folder])
    (tmp_path / "config.toml").write_text(
        'memory_limit = "50%"\nkv_cache_size = "25%"\nkv_live_size = "12.5 %"\n'
        'kv_disk_size = "10%"\n'
    )
    found = read_settings({"home": tmp_path}, {})
    assert (found.memory_limit_bytes, found.kv_cache_bytes) == (16 * GIB, 4 * GIB)
    assert (found.kv_live_bytes, found.kv_disk_bytes) == (2 * GIB, 100 * GIB)
    found = read_settings({"home": tmp_path, "memory_limit_bytes": 8 * GIB}, {})
    assert (found.memory_limit_bytes, found.kv_cache_bytes) == (8 * GIB, 2 * GIB)
    (tmp_path / "config.toml").write_text('kv_cache_size = "50%"\n')
    found = read_settings({"home": tmp_path}, {})
    assert found.memory_limit_bytes is None
    assert found.kv_cache_bytes == machine.default_limit_bytes // 2


def test_all_that_keeps_settings_from_going_together_is_told(tmp_path: Path) -> None:
    settings = Settings(tmp_path, script=Path("x"), tool_parsers=(("", "nope"),))
    first, second = start_problems(settings)
    assert "--engine scripted" in first and "no format 'nope'" in second


def test_an_option_wins_over_the_environment_and_that_over_the_default() -> None:
    environ = {
        "MLX_FLEET_HOME": "/fleet",
        "MLX_FLEET_NODE_PORT": "9000",
        "MLX_FLEET_NODE_MAX_ROWS": "3",
        "MLX_FLEET_NODE_MODELS": "/a:/b",
        "MLX_FLEET_NODE_SERVED_MODEL_NAMES": "x, y",
    }
    settings = read_settings({"port": 9001, "host": None, "models": ()}, environ)
    assert settings.home == Path("/fleet/node")
    assert (settings.port, settings.max_rows, settings.host) == (9001, 3, "127.0.0.1")
    assert settings.models == (Path("/a"), Path("/b"))
    assert settings.served_model_names == ("x", "y")


@pytest.mark.parametrize(
    "options",
    [
        {"kv_snapshot_bytes": 5, "engine": "scripted"},
        {"kv_disk_bytes": 0, "engine": "scripted"},
        {"script": Path("x")},
        {"wired": "lease", "engine": "scripted"},
    ],
)
def test_a_setting_of_another_engine_stops_the_start(options: dict[str, object]) -> None:
    with pytest.raises(StartError, match=next(iter(options))):
        read_settings(options, {})


@pytest.mark.parametrize(
    ("reasoning", "tools", "goes"),
    [
        ("harmony", "hermes", False),
        ("think", "kimi_k3", False),
        ("command_r", "muse", False),
        ("harmony", "gpt_oss", True),
        ("none", "harmony", True),
        ("harmony", "none", True),
        ("think", "glm", True),
    ],
)
def test_formats_that_do_not_go_together_stop_the_start(
    reasoning: str, tools: str, goes: bool
) -> None:
    everywhere = {"reasoning_parsers": (("", reasoning),), "tool_parsers": (("", tools),)}
    mixed = {"reasoning_parsers": (("m", reasoning),), "tool_parsers": (("", tools),)}
    apart = {"reasoning_parsers": (("m", reasoning),), "tool_parsers": (("n", tools),)}
    read_settings(apart, {})
    for options in (everywhere, mixed):
        if goes:
            read_settings(options, {})
        else:
            with pytest.raises(StartError, match="cannot be combined"):
                read_settings(options, {})


@pytest.mark.parametrize("name", ["tools", "messages", "add_generation_prompt"])
def test_a_variable_that_a_template_is_given_already_is_no_default(name: str) -> None:
    with pytest.raises(StartError, match=f"{name} is not a variable that can be set"):
        read_settings({"default_chat_template_kwargs": (("m", {name: 1}),)}, {})


def test_a_default_that_is_null_is_none() -> None:
    with pytest.raises(StartError, match="a is null; leave it out"):
        read_settings({"default_chat_template_kwargs": (("", {"a": None}),)}, {})
    given = (("", {"a": 0}), ("m", {"enable_thinking": False}))
    settings = read_settings({"default_chat_template_kwargs": given}, {})
    assert settings.default_chat_template_kwargs == given


def test_auto_as_an_option_wins_over_a_size_in_the_environment() -> None:
    environ = {"MLX_FLEET_NODE_KV_DISK_BYTES": "5GB"}
    assert read_settings({}, environ).kv_disk_bytes == 5 * 10**9
    assert read_settings({"kv_disk_bytes": read_disk_bytes("auto")}, environ).kv_disk_bytes is None
    assert read_settings({"kv_disk_bytes": read_disk_bytes("off")}, environ).kv_disk_bytes == 0


def test_where_mlx_cannot_run_the_error_does_not_suggest_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    intel = PlayedKernel({}, architecture="x86_64")
    monkeypatch.setattr("node.commands.configuration.this_kernel", lambda: intel)
    with pytest.raises(ExtraMissing, match="an Intel Mac.*router serve"):
        need_extra()
