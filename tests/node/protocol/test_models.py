"""The list of models is read by OpenAI's and by Anthropic's clients."""

import json
from datetime import UTC, datetime

import anthropic
import openai
import pytest

from node.protocol.models import ModelCard, model_body, models_body, near_names
from tests.node.dialects.openai_stream import serving

CARD = ModelCard("org/m", 4096, ("completion", "tools"), "hermes", "think", "ready")
JSON = "application/json"
CREATED_S = 1_750_000_000


def test_a_model_s_view_has_all_that_is_known() -> None:
    assert json.loads(model_body(CARD, CREATED_S)) == {
        "id": "org/m",
        "object": "model",
        "created": CREATED_S,
        "owned_by": "mlx-fleet",
        "type": "model",
        "display_name": "org/m",
        "created_at": "2025-06-15T15:06:40Z",
        "lifecycle": "active",
        "capabilities": ["completion", "tools"],
        "context_window": 4096,
        "max_model_len": 4096,
        "max_input_tokens": 4096,
        "tool_call_parser": "hermes",
        "reasoning_parser": "think",
        "state": "ready",
    }


def test_what_is_not_known_is_left_out() -> None:
    model = json.loads(model_body(ModelCard("m"), 5))
    assert None not in model.values()
    assert not {"context_window", "max_model_len", "tool_call_parser", "state"} & set(model)


def test_openais_client_lists_models() -> None:
    body = models_body([CARD], CREATED_S)
    with serving(body, JSON) as url, openai.OpenAI(api_key="k", base_url=url) as client:
        (model,) = list(client.models.list())
    assert (model.id, model.created, model.owned_by) == ("org/m", CREATED_S, "mlx-fleet")


def test_anthropics_client_lists_models_on_one_page() -> None:
    body = models_body([CARD, ModelCard("b")], CREATED_S)
    with serving(body, JSON) as url, anthropic.Anthropic(api_key="k", base_url=url) as client:
        models = list(client.models.list())
    assert [(model.id, model.type, model.display_name) for model in models] == [
        ("org/m", "model", "org/m"),
        ("b", "model", "b"),
    ]
    assert models[0].created_at == datetime.fromtimestamp(CREATED_S, UTC)
    assert models[0].max_input_tokens == 4096


def test_a_page_has_the_ids_of_its_ends() -> None:
    page = json.loads(models_body([CARD, ModelCard("b")], 5))
    assert (page["object"], page["has_more"]) == ("list", False)
    assert (page["first_id"], page["last_id"]) == ("org/m", "b")
    empty = json.loads(models_body([], 5))
    assert (empty["data"], empty["first_id"], empty["last_id"]) == ([], None, None)


FLEET = (
    "mlx-community/Qwen3-4B-4bit",
    "mlx-community/Qwen3-30B-A3B-4bit",
    "smollm2",
    "gpt-oss-120b",
)


@pytest.mark.parametrize(
    ("requested", "nearest"),
    [
        ("Qwen3-4B", "mlx-community/Qwen3-4B-4bit"),
        ("qwen3-4b-4bit", "mlx-community/Qwen3-4B-4bit"),
        ("mlx-community/Qwen3-4B-8bit", "mlx-community/Qwen3-4B-4bit"),
        ("smollm", "smollm2"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
    ],
)
def test_a_name_that_is_nearly_a_model_s_finds_it(requested: str, nearest: str) -> None:
    assert near_names(requested, FLEET)[0] == nearest


def test_what_resembles_nothing_finds_nothing() -> None:
    assert near_names("claude-opus-4-5", FLEET) == ()
    assert near_names("", FLEET) == ()
    assert len(near_names("q" * 100_000, FLEET)) == 0
