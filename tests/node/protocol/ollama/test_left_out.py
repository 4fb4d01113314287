import re

import pytest

from node.protocol.ollama.left_out import why_left_out
from tests.command_lines import ALL_COMMANDS

PATHS = ("embed", "embeddings", "pull", "push", "create", "copy", "delete", "blobs/sha256:0")


@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_is_left_out_names_commands_that_are_there(name: str) -> None:
    sentence = why_left_out(f"/api/{name}")
    assert sentence is not None
    known = {path for path, _ in ALL_COMMANDS}
    assert set(re.findall(r"`([^`]+)`", sentence)) <= known


@pytest.mark.parametrize("path", ["/api/chat", "/api/nothing", "/v1/embed", "/api"])
def test_other_paths_have_no_reason(path: str) -> None:
    assert why_left_out(path) is None
