"""`node-agent warm` against an agent on a real socket."""

import json
from pathlib import Path
from typing import Any

import pytest

from node.engine.scripted import Script, ScriptedModel
from tests.node.commands.running import Ended, run_command
from tests.node.serving import RunningAgent, running

SYSTEM: dict[str, Any] = {"messages": [{"role": "system", "content": "the system " * 20}]}
TEXT: dict[str, Any] = {"prompt": "abcdefgh", "model": "other"}
TWO = Script(models=(ScriptedModel(context_tokens=100), ScriptedModel("other")))


async def warm(
    agent: RunningAgent,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    bodies: list[dict[str, Any]],
    *options: str,
) -> Ended:
    file = folder / "warm.jsonl"
    file.write_text("\n".join(json.dumps(body) for body in bodies))
    place = ("--home", str(folder), "--url", f"http://127.0.0.1:{agent.port}")
    return await run_command(capsys, "warm", str(file), *place, *options)


async def test_prints_what_became_of_each_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, TWO) as agent:
        bodies = [{**SYSTEM, "model": "scripted"}, TEXT, {**SYSTEM, "model": "scripted"}]
        ended = await warm(agent, tmp_path, capsys, bodies, "--json")
        assert (ended.code, ended.err) == (0, "")
        shown = json.loads(ended.out)
        assert [(each["number"], each["model"]) for each in shown] == [
            *((1, "scripted"), (2, "other"), (3, "scripted"))
        ]
        assert [each["tokens"] for each in shown] == [55, 2, 55]
        ended = await warm(agent, tmp_path, capsys, bodies, "--model", "other")
        assert ended.code == 0
        assert [line.split()[:3] for line in ended.out.splitlines()[1:]] == [
            *(["1", "other", "55"], ["2", "other", "2"], ["3", "other", "55"])
        ]


async def test_a_prompt_that_is_not_warm_is_a_failure_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, TWO) as agent:
        bodies = [{"prompt": "x" * 1000}, {"prompt": "x"}]
        ended = await warm(agent, tmp_path, capsys, bodies, "--model", "scripted")
        assert ended.code == 1
        assert "context" in ended.out


@pytest.mark.parametrize(
    ("bodies", "options", "code", "words"),
    [
        ([], (), 2, "holds no requests"),
        ([SYSTEM], (), 2, "Request 1 names no model; add --model"),
        ([TEXT, {"messages": []}], ("--model", "other"), 2, "request 2: messages is not valid"),
        ([SYSTEM], ("--model", "nothing"), 1, "There is no model 'nothing' on this node"),
        ([TEXT], ("--token", "wrong", "--home", "/nowhere"), 1, "The token is missing or wrong"),
        ([TEXT], ("--url", "http://127.0.0.1:1"), 1, "Nothing answers at http://127.0.0.1:1"),
        ([TEXT], ("--url", "ftp://x"), 2, "is not an address"),
    ],
)
async def test_what_is_wrong_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    bodies: list[dict[str, Any]],
    options: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    async with running(tmp_path, TWO) as agent:
        ended = await warm(agent, tmp_path, capsys, bodies, *options)
        assert (ended.code, ended.out, ended.err.count("\n")) == (code, "", 1)
        assert words in ended.err
