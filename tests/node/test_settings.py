"""Settings from the environment."""

from pathlib import Path

import pytest

from node.errors import StartError
from node.settings import read_environment


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
