import json
from typing import Any

import pytest

from node.dialects.ollama.chat import OllamaRequest
from node.dialects.ollama.generate import OLLAMA_GENERATE, read_ollama_generate
from node.dialects.ollama.residency import ResidencyRequest
from node.errors import BadRequest, Unsupported
from node.request import Message


def parse(**fields: Any) -> OllamaRequest | ResidencyRequest:
    body = {"model": "m", "prompt": "hello", **fields}
    return read_ollama_generate(json.dumps(body).encode(), str)


def generate(**fields: Any) -> OllamaRequest:
    parsed = parse(**fields)
    assert isinstance(parsed, OllamaRequest)
    return parsed


def test_each_field_is_in_one_class() -> None:
    table = OLLAMA_GENERATE
    applied, refused, ignored = set(table.body.model_fields), set(table.refused), set(table.ignored)
    assert set(table.notes) == applied
    assert not applied & refused and not applied & ignored and not refused & ignored


def test_the_prompt_is_a_user_s_message_behind_the_system_message() -> None:
    request = generate(system="Be brief.").request
    assert request.messages == (Message("system", "Be brief."), Message("user", "hello"))
    assert request.prompt is None and request.stream


def test_a_raw_prompt_has_no_template() -> None:
    request = generate(raw=True, think=True).request
    assert (request.messages, request.prompt) == (None, "hello")
    assert request.template.enable_thinking is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"template": "x"}, "template"),
        ({"context": [1]}, "context"),
        ({"raw": True, "system": "x"}, "system"),
        ({"raw": True, "images": ["x"]}, "images"),
        ({"images": ["x"]}, "images[0]"),
        ({"prompt": 1}, "prompt"),
        ({"width": 10}, "width"),
    ],
)
def test_a_field_at_fault_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises((BadRequest, Unsupported)) as caught:
        parse(**fields)
    assert caught.value.param == param


def test_values_that_change_nothing_are_accepted() -> None:
    generate(suffix="", template="", context=[], images=[], system="", raw=False)


@pytest.mark.parametrize("prompt", [None, ""])
def test_without_a_prompt_the_model_is_only_loaded(prompt: object) -> None:
    assert parse(prompt=prompt, keep_alive="5m") == ResidencyRequest("m", 300.0, is_chat=False)
