"""Settings from the environment."""

from pathlib import Path

import pytest

from node.errors import StartError
from node.settings import read_environment, read_warm


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
