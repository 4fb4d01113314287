"""Settings from the environment."""

from pathlib import Path

import pytest

from node.errors import StartError
from node.setting_kinds import (
    read_keep_alive,
    read_kwargs,
    read_thinking_tokens,
    read_warm,
)
from node.settings import Settings, named_models, read_environment
from serving.setting import BadSetting
from serving.stay_awake import StayAwake


def test_the_token_of_add_node_is_not_a_setting_and_no_fault() -> None:
    environ = {"MLX_FLEET_NODE_TOKEN": "secret", "MLX_FLEET_NODE_PORT": "1"}
    assert read_environment(environ) == {"port": 1}


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(StartError, match="MLX_FLEET_NODE_PROT is not a setting"):
        read_environment({"MLX_FLEET_NODE_PROT": "1"})


def test_a_variable_that_is_nearly_ours_stops_the_start() -> None:
    with pytest.raises(StartError, match="did you mean MLX_FLEET_NODE_PORT?"):
        read_environment({"MLX_FLEET_NOED_PORT": "1"})
    assert read_environment({"MLX_FLEET_ROUTER_PROT": "1", "MLX_FLEET_NODE_TOKEN": "x"}) == {}


@pytest.mark.parametrize("name", ["HOME", "SCRIPT"])
def test_an_empty_path_does_not_mean_the_current_folder(name: str) -> None:
    with pytest.raises(StartError, match=f"MLX_FLEET_NODE_{name} must be a path"):
        read_environment({f"MLX_FLEET_NODE_{name}": ""})
    given = read_environment({f"MLX_FLEET_NODE_{name}": "~/x"})
    assert given == {name.lower(): Path.home() / "x"}


def test_warm_prompts_are_files_for_models() -> None:
    given = read_environment({"MLX_FLEET_NODE_WARM": "org/m=/a.jsonl:n=b.jsonl:"})
    assert given == {"warm": (("org/m", Path("/a.jsonl")), ("n", Path("b.jsonl")))}
    for wrong in ("m", "=f", "m="):
        with pytest.raises(BadSetting, match="warm must be MODEL=FILE"):
            read_warm(wrong)


def test_sizes_are_bytes_or_have_a_unit() -> None:
    environ = {
        "MLX_FLEET_NODE_MEMORY_LIMIT_BYTES": "12GiB",
        "MLX_FLEET_NODE_KV_CACHE_BYTES": "1000",
        "MLX_FLEET_NODE_KV_DISK_BYTES": "off",
    }
    assert read_environment(environ) == {
        "memory_limit_bytes": 12 * 1024**3,
        "kv_cache_bytes": 1000,
        "kv_disk_bytes": 0,
    }
    with pytest.raises(StartError, match="MLX_FLEET_NODE_KV_CACHE_BYTES: 'off' is not a size"):
        read_environment({"MLX_FLEET_NODE_KV_CACHE_BYTES": "off"})


def test_template_variables_are_objects_for_models_or_for_all() -> None:
    text = 'org/m = {"a": {"b": [1, "},x={"]}}, {"enable_thinking": false},'
    given = read_environment({"MLX_FLEET_NODE_DEFAULT_CHAT_TEMPLATE_KWARGS": text})
    assert given == {
        "default_chat_template_kwargs": (
            ("org/m", {"a": {"b": [1, "},x={"]}}),
            ("", {"enable_thinking": False}),
        )
    }
    assert read_kwargs("{}") == ("", {})
    for wrong in ("", "m", "m=", "[1]", "m=[1]", '{"a": NaN}', "{a: 1}", "{} {}x", "={}", "{},{}"):
        with pytest.raises(BadSetting, match="must be JSON or MODEL=JSON"):
            read_kwargs(wrong)
    for no_prompt in ('{"a": "\\ud800"}', '{"a": [1e999]}'):
        with pytest.raises(BadSetting, match="must be JSON or MODEL=JSON"):
            read_kwargs(no_prompt)
    with pytest.raises(StartError, match="MLX_FLEET_NODE_DEFAULT_CHAT_TEMPLATE_KWARGS: template"):
        read_environment({"MLX_FLEET_NODE_DEFAULT_CHAT_TEMPLATE_KWARGS": "m={"})


def test_thinking_tokens_are_numbers_for_models_or_for_all() -> None:
    given = read_environment({"MLX_FLEET_NODE_MAX_THINKING_TOKENS": "512, org/m=0,"})
    assert given == {"max_thinking_tokens": (("", 512), ("org/m", 0))}
    for wrong in ("", "m", "m=", "=1", "-1", "m=-1", "1.5", "m=²"):
        with pytest.raises(BadSetting, match="N at least 0"):
            read_thinking_tokens(wrong)
    with pytest.raises(StartError, match="MLX_FLEET_NODE_MAX_THINKING_TOKENS: thinking tokens"):
        read_environment({"MLX_FLEET_NODE_MAX_THINKING_TOKENS": "much"})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30.0), ("1.5m", 90.0), ("2h", 7200.0), ("1d", 86400.0), ("2m30s", 150.0), ("7", 7.0)],
)
def test_times_have_a_unit_or_are_seconds(text: str, seconds: float) -> None:
    given = read_environment({"MLX_FLEET_NODE_MIN_RESIDENCY_S": text})
    assert given == {"min_residency_s": seconds}


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1y", "s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(StartError, match="MLX_FLEET_NODE_STALL_TIMEOUT_S: .* is not a duration"):
        read_environment({"MLX_FLEET_NODE_STALL_TIMEOUT_S": text})


def test_keep_alives_are_for_all_models_or_for_one_and_may_be_for_ever() -> None:
    given = read_environment({"MLX_FLEET_NODE_KEEP_ALIVES": "10m, org/m=forever, n=0"})
    assert given == {"keep_alives": (("", 600.0), ("org/m", None), ("n", None))}
    with pytest.raises(BadSetting, match="TIME or MODEL=TIME"):
        read_keep_alive("=1h")


def test_pinned_models_are_among_those_that_settings_name() -> None:
    given = read_environment({"MLX_FLEET_NODE_PINS": "a, org/b"})
    named = named_models(Settings(home=Path("/x"), pins=("a",), keep_alives=(("c", 1.0),)))
    assert given == {"pins": ("a", "org/b")}
    assert named["--pin"] == {"a"}
    assert named["--keep-alive"] == {"c"}


def test_when_to_stay_awake_is_one_of_three() -> None:
    given = read_environment({"MLX_FLEET_NODE_STAY_AWAKE": "always"})
    assert given == {"stay_awake": StayAwake.ALWAYS}
    with pytest.raises(StartError, match="NODE_STAY_AWAKE must be one of busy|always|never"):
        read_environment({"MLX_FLEET_NODE_STAY_AWAKE": "sometimes"})


def test_calls_are_streamed_unless_a_node_is_set_otherwise() -> None:
    assert Settings(home=Path()).tool_stream
    for text, streams in {"on": True, "off": False, "true": True, "0": False}.items():
        assert read_environment({"MLX_FLEET_NODE_TOOL_STREAM": text}) == {"tool_stream": streams}
    with pytest.raises(StartError, match="MLX_FLEET_NODE_TOOL_STREAM must be on or off"):
        read_environment({"MLX_FLEET_NODE_TOOL_STREAM": "maybe"})


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("ENGINE", "x", "one of text, scripted"),
        ("WIRED", "all", "one of off, weights, lease"),
        ("REASONING_FIELD", "thoughts", "one of reasoning_content, reasoning, both"),
        ("MAX_ROWS", "0", "from 1 to 256"),
        ("MAX_ROWS", "257", "from 1 to 256"),
        ("PREFILL_CHUNK_TOKENS", "15", "from 16 to 65536"),
        ("PREFILL_CHUNK_TOKENS", "65537", "from 16 to 65536"),
        ("DECODE_STALL_TARGET_MS", "9", "from 10 to 60000"),
        ("DECODE_STALL_TARGET_MS", "60001", "from 10 to 60000"),
        ("KV_LIVE_BYTES", "1048575", "at least 1MiB"),
        ("KV_SNAPSHOT_BYTES", "0", "at least 1B"),
        ("RESPONSES_BYTES", "1000", "at least 1MiB"),
        ("KV_CACHE_BITS", "5", "4 or 8"),
        ("KV_LIVE_BITS", "16", "4 or 8"),
    ],
)
def test_a_value_out_of_bounds_stops_the_start(name: str, text: str, words: str) -> None:
    with pytest.raises(StartError, match=f"MLX_FLEET_NODE_{name} must be .*{words}, not '{text}'"):
        read_environment({f"MLX_FLEET_NODE_{name}": text})


def test_the_bounds_themselves_are_allowed() -> None:
    bounds = {
        "MLX_FLEET_NODE_MAX_ROWS": "256",
        "MLX_FLEET_NODE_PREFILL_CHUNK_TOKENS": "16",
        "MLX_FLEET_NODE_KV_LIVE_BYTES": "1MiB",
        "MLX_FLEET_NODE_KV_CACHE_BITS": "8",
    }
    read = read_environment(bounds)
    assert list(read.values()) == [256, 16, 1024**2, 8]
