"""Files of warm prompts."""

import json
from pathlib import Path

import pytest

from node.agent.warm_prompts import Body, parse_body, read_bodies, read_plan
from node.errors import BadRequest, StartError

CHAT: Body = {"messages": [{"role": "system", "content": "a"}]}
TEXT: Body = {"model": "other", "prompt": "b"}


def test_a_file_is_a_json_list_or_an_object_a_line(tmp_path: Path) -> None:
    file = tmp_path / "warm"
    file.write_text(json.dumps([CHAT, TEXT], indent=2))
    assert read_bodies(file) == [CHAT, TEXT]
    file.write_text(f"{json.dumps(CHAT)}\n\n{json.dumps(TEXT)}\n")
    assert read_bodies(file) == [CHAT, TEXT]
    file.write_text("")
    assert read_bodies(file) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        ("[1]", "is not a JSON list of requests"),
        ("[", "is not a JSON list of requests"),
        ('{"prompt": "a"}\nhello', "line 2, is not a JSON object"),
        ('{"prompt": "a"}\n{"prompt": 1}', "request 2: prompt must be"),
        ("{}", "request 1: A warm prompt has either messages or a prompt"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_message(
    tmp_path: Path, content: str | None, words: str
) -> None:
    file = tmp_path / "warm"
    if content is not None:
        file.write_text(content)
    with pytest.raises(StartError, match=words):
        read_plan([("m", file)])


def test_a_plan_has_all_files_of_a_model(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(json.dumps(CHAT))
    second.write_text(json.dumps(TEXT))
    plan = read_plan([("m", first), ("n", first), ("m", second)])
    assert {model: len(requests) for model, requests in plan.items()} == {"m": 2, "n": 1}
    assert [request.model for request in plan["m"]] == ["m", "m"]
    assert plan["m"][1].prompt == "b"


def test_how_an_answer_would_be_sent_does_not_matter() -> None:
    assert parse_body({**CHAT, "stream_options": {}, "max_tokens": 1}, "m").stream is False
    with pytest.raises(BadRequest):
        parse_body({**CHAT, **TEXT}, "m")
