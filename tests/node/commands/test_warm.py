"""`node-agent warm` against an agent on a real socket."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.progress import Progress

from node.agent.warm_prompts import WarmProgress
from node.commands import warm as command
from node.commands.warm import Warmed
from node.engine.scripted.cache import ScriptedCache
from node.engine.scripted.script import Script, ScriptedModel
from tests.node.commands.running import Ended, run_command
from tests.node.serving import RunningAgent, running

SYSTEM: dict[str, Any] = {"messages": [{"role": "system", "content": "the system " * 20}]}
TEXT: dict[str, Any] = {"prompt": "abcdefgh", "model": "other"}
DONE = Warmed(number=1, model="m", tokens=120, cached_tokens=0, seconds=1.0, error=None)
TWO = Script(
    models=(ScriptedModel(context_tokens=100), ScriptedModel("other")),
    cache=ScriptedCache(capacity_tokens=1000),
)


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
        assert ended.code == 0
        # Where there is no terminal, there is a line for each.
        lines = [line.partition(" tokens in ")[0] for line in ended.err.splitlines()]
        assert lines == ["Prompt 1 of 3: 55", "Prompt 2 of 3: 2", "Prompt 3 of 3: 55"]
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
        assert ended.err.startswith("Prompt 1 of 2: ") and "the prompt has 250 tokens" in ended.err


async def test_a_prompt_that_there_is_no_room_for_is_a_failure_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, msgspec.structs.replace(TWO, cache=ScriptedCache())) as agent:
        ended = await warm(agent, tmp_path, capsys, [{**SYSTEM, "model": "other"}])
    assert ended.code == 1
    assert "no room to keep it" in ended.out


async def test_a_token_that_is_given_wins_over_the_file_and_that_over_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, TWO) as agent:
        file = tmp_path / "warm.jsonl"
        file.write_text(json.dumps(TEXT))
        monkeypatch.setenv("MLX_FLEET_NODE_PORT", str(agent.port))
        monkeypatch.setenv("MLX_FLEET_NODE_TOKEN", "wrong")
        arguments = ("warm", str(file), "--home", str(tmp_path))
        assert (await run_command(capsys, *arguments)).code == 0
        ended = await run_command(capsys, *arguments, "--token", "wrong")
        assert (ended.code, "HTTP 401" in ended.err) == (1, True)
        (tmp_path / "token").write_text("wrong")
        monkeypatch.delenv("MLX_FLEET_NODE_TOKEN")
        assert (await run_command(capsys, *arguments, "--token", agent.token)).code == 0


def test_a_bar_moves_within_a_prompt() -> None:
    bars = Progress(disable=True)
    seen = []

    def lines() -> Iterator[WarmProgress | Warmed]:
        for each in (WarmProgress(0, 30, 120), DONE, WarmProgress(1, 60, 120), DONE):
            yield each
            task = bars.tasks[0]
            seen.append((task.description, task.completed))

    assert command._show(bars, 2, lines()) == [DONE, DONE]
    assert seen == [
        *(("prompt 1 of 2", 0.25), ("prompt 2 of 2", 1)),
        *(("prompt 2 of 2", 1.5), ("prompt 2 of 2", 2)),
    ]


def test_brackets_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    odd = msgspec.structs.replace(DONE, model="m[/b]", error="The server said [/red] [b]no[/b].")
    command._print_table([odd])
    shown = capsys.readouterr().out
    assert "m[/b]" in shown
    assert "The server said [/red] [b]no[/b]." in shown


@pytest.mark.parametrize(
    ("bodies", "options", "code", "words"),
    [
        ([], (), 2, "contains no requests"),
        ([SYSTEM], (), 2, "Request 1 names no model; add --model"),
        ([TEXT, {"messages": []}], ("--model", "other"), 2, "request 2: messages is not valid"),
        ([SYSTEM], ("--model", "nothing"), 1, "There is no model 'nothing' on this node"),
        ([TEXT], ("--token", "wrong", "--home", "/nowhere"), 1, "The token is missing or wrong"),
        ([TEXT], ("--url", "http://127.0.0.1:1"), 1, "Nothing responds at http://127.0.0.1:1"),
        ([TEXT], ("--url", "ftp://x"), 2, "is not an address"),
        ([TEXT], ("--url", "mini:99999"), 2, "is not an address"),
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
