"""The official OpenAI client against a router with two scripted agents."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.acceptance.processes import Router, fleet


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with fleet(tmp_path_factory.mktemp("clients"), {}, {}) as (router, _agents):
        yield router


@pytest.fixture
def client(front: Router) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=front.url + "/v1", api_key=front.key, max_retries=0) as made:
        yield made


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").id == "scripted"


def test_a_chat_is_answered(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "hello"}], max_tokens=5
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.prompt_tokens > 0
    assert answer.model == "scripted"


def test_a_streamed_chat_has_the_text_of_the_collected_one_and_ends_with_usage(
    client: openai.OpenAI,
) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
    whole = client.chat.completions.create(model="scripted", messages=messages, max_tokens=7)
    stream = client.chat.completions.create(
        model="scripted",
        messages=messages,
        max_tokens=7,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 7


def test_a_completion_is_answered(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="scripted", prompt="Once upon a time", max_tokens=4)
    assert answer.choices[0].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


def test_a_bad_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(
            model="scriptd", messages=[{"role": "user", "content": "hello"}]
        )
    assert caught.value.param == "model"
    assert "scripted" in str(caught.value)


def test_a_bad_key_is_an_authentication_error(front: Router) -> None:
    with (
        openai.OpenAI(base_url=front.url + "/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", []),
        ("max_tokens", -1),
        ("temperature", 9),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("n", 17),
        ("top_logprobs", 2),
    ],
)
def test_a_bad_field_is_named(client: openai.OpenAI, field: str, value: object) -> None:
    body: dict[str, object] = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "hello"}],
    }
    body[field] = value
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", body=body, cast_to=object)
    assert caught.value.param == field


async def test_eight_chats_at_once_are_all_answered(front: Router) -> None:
    async with openai.AsyncOpenAI(base_url=front.url + "/v1", api_key=front.key) as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model="scripted",
                    messages=[{"role": "user", "content": f"number {i}"}],
                    max_tokens=6,
                )
                for i in range(8)
            )
        )
    texts = {answer.choices[0].message.content for answer in answers}
    assert len(texts) == 8


def test_an_alias_is_answered_under_its_own_name(front: Router, client: openai.OpenAI) -> None:
    front.must("alias", "set", "fast", "scripted")
    try:
        answer = client.chat.completions.create(
            model="fast", messages=[{"role": "user", "content": "hello"}], max_tokens=2
        )
        assert answer.model == "fast"
        assert {model.id for model in client.models.list()} == {"fast", "scripted"}
    finally:
        front.must("alias", "rm", "fast")


def test_commands_list_what_there_is(front: Router, tmp_path: Path) -> None:
    listed = json.loads(front.must("nodes", "--json"))
    assert [node["name"] for node in listed] == ["node1", "node2"]
    assert "scripted" in front.must("models")
