"""Short names of models in commands."""

import pytest

from node.commands.agent_client import CommandFailed
from node.commands.residency.model_name import meant_name

NAMES = ("org/Qwen3-4B-4bit", "org/Qwen3-8B-4bit", "m")


def test_a_name_stands_for_the_only_model_that_it_fits() -> None:
    assert meant_name("qwen3-4b", NAMES) == "org/Qwen3-4B-4bit"
    assert meant_name("m", NAMES) == "m"
    assert meant_name("llama", NAMES) is None


def test_one_that_fits_several_is_an_error_that_lists_them() -> None:
    with pytest.raises(CommandFailed, match="fits several models: org/Qwen3-4B-4bit, org/Qwen3-8B"):
        meant_name("qwen3", NAMES)
