"""The settings of each client have the format that it reads."""

import ast

import pytest

from router.commands.connect.clients import CLIENTS, KEY_VARIABLE, Client
from router.commands.connect.setup import Endpoint
from router.settings import ENV_KEY

PLACE = Endpoint("http://mini:8800", "mlxf-key", 'the "model"', 32768)


def test_a_client_s_key_is_not_the_one_that_commands_of_an_admin_read() -> None:
    assert KEY_VARIABLE != ENV_KEY


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_a_context_length_that_is_not_known_is_left_out(client: Client) -> None:
    unknown = Endpoint("http://mini:8800", "mlxf-key", "m", None)
    setup = client.setup(unknown)
    text = "".join(block.text for block in setup.blocks())
    text += "".join(file.merged_into("") for file in setup.written)
    assert "None" not in text and "null" not in text and "32768" not in text


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_files_are_written_or_there_is_a_reason(client: Client) -> None:
    setup = client.setup(PLACE)
    assert bool(setup.written) != bool(setup.unwritten)
    assert [file for file in setup.files if file.merged_into("") == ""] == []
    if setup.code:
        ast.parse(setup.code)


def test_a_short_context_is_not_filled_by_one_response() -> None:
    assert Endpoint("u", "k", "m", 4096).output_tokens == 1024
    assert Endpoint("u", "k", "m", 262144).output_tokens == 8192


def test_claude_code_without_a_model_uses_its_own_names() -> None:
    variables = CLIENTS["claude-code"].setup(Endpoint("http://mini", "k", "", None)).variables
    assert list(variables) == ["ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN"]
