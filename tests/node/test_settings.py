"""Settings from the environment."""

from pathlib import Path

import pytest

from node.errors import StartError
from node.settings import read_environment, read_kwargs, read_thinking_tokens, read_warm


def test_the_token_of_add_node_is_not_a_setting_and_no_fault() -> None:
    environ = {"MLX_FLEET_NODE_TOKEN": "secret", "MLX_FLEET_NODE_PORT": "1"}
    assert read_environment(environ) == {"port": 1}


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(StartError, match="MLX_FLEET_NODE_PROT is not a setting"):
        read_environment({"MLX_FLEET_NODE_PROT": "1"})


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
        with pytest.raises(StartError, match="warm must be MODEL=FILE"):
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
        with pytest.raises(StartError, match="must be JSON or MODEL=JSON"):
            read_kwargs(wrong)
    for no_prompt in ('{"a": "\\ud800"}', '{"a": [1e999]}'):
        with pytest.raises(StartError, match="must be JSON or MODEL=JSON"):
            read_kwargs(no_prompt)
    with pytest.raises(StartError, match="MLX_FLEET_NODE_DEFAULT_CHAT_TEMPLATE_KWARGS: template"):
        read_environment({"MLX_FLEET_NODE_DEFAULT_CHAT_TEMPLATE_KWARGS": "m={"})


def test_thinking_tokens_are_numbers_for_models_or_for_all() -> None:
    given = read_environment({"MLX_FLEET_NODE_MAX_THINKING_TOKENS": "512, org/m=0,"})
    assert given == {"max_thinking_tokens": (("", 512), ("org/m", 0))}
    for wrong in ("", "m", "m=", "=1", "-1", "m=-1", "1.5", "m=²"):
        with pytest.raises(StartError, match="N at least 0"):
            read_thinking_tokens(wrong)
    with pytest.raises(StartError, match="MLX_FLEET_NODE_MAX_THINKING_TOKENS: thinking tokens"):
        read_environment({"MLX_FLEET_NODE_MAX_THINKING_TOKENS": "much"})
