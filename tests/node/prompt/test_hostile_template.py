"""A model folder whose chat template does not end affects neither its agent nor other models."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from node.app import scripted_entries
from node.engine.scripted.script import Script, ScriptedModel
from node.models.store import ModelEntry
from node.prompt import renderers
from node.prompt.process import RenderLimits
from node.protocol.messages import ModelState, StatusEvent
from tests.node.prompt.test_remote import LARGE, LOOP, guarded
from tests.node.prompt.words import TEMPLATE, words_folder
from tests.node.serving import WAIT_S, chat_body, running

BRIEF = RenderLimits(template_s=6.0, render_s=4.0)
"""More time than any other template takes under load."""
LITTLE = RenderLimits(template_s=WAIT_S, render_s=WAIT_S, memory_bytes=400 * 1024**2)
SCRIPT = Script(models=(ScriptedModel("good"), ScriptedModel("bad")))


def in_folders(
    base: Path, monkeypatch: pytest.MonkeyPatch, template: str, limits: RenderLimits
) -> None:
    """Gives the scripted models real templates; `bad` gets the hostile one."""
    templates = {"good": TEMPLATE, "bad": template}
    folders = {name: words_folder(base / name, text) for name, text in templates.items()}

    def entries(script: Script) -> tuple[ModelEntry, ...]:
        return tuple(replace(each, folder=folders[each.name]) for each in scripted_entries(script))

    monkeypatch.setattr("node.app.scripted_entries", entries)
    monkeypatch.setattr(renderers, "RenderLimits", lambda: limits)


@pytest.mark.parametrize(
    ("what", "limits", "reason"),
    [(LOOP, BRIEF, "takes more than 6 s"), (LARGE, LITTLE, "takes more than 0.4 GiB")],
)
async def test_its_model_fails_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, limits: RenderLimits, reason: str
) -> None:
    in_folders(tmp_path, monkeypatch, what + TEMPLATE, limits)
    async with running(tmp_path / "home", SCRIPT) as agent, agent.events() as events:
        waiting = asyncio.create_task(agent.chat(model="bad"))
        good = await agent.chat("b", model="good", max_tokens=1)
        assert (good.status_code, (await agent.client.get("/health")).status_code) == (200, 200)
        answer = await waiting
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "load_failed")
        assert f"The chat template of bad {reason}" in answer.json()["error"]["message"]

        def is_failed(event: StatusEvent) -> bool:
            (bad,) = (each for each in event.status.models if each.name == "bad")
            return bad.state is ModelState.FAILED and reason in (bad.reason or "")

        await events.next(StatusEvent, is_failed)


async def test_a_chat_that_provokes_it_is_refused_and_its_model_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_folders(tmp_path, monkeypatch, guarded(LOOP), BRIEF)
    async with running(tmp_path / "home", SCRIPT) as agent, asyncio.timeout(WAIT_S):
        waiting = asyncio.create_task(agent.chat("c", model="bad"))
        counted = await agent.client.post("/v1/messages/count_tokens", json=chat_body(model="good"))
        assert counted.json()["input_tokens"] > 0
        answer = await waiting
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
        assert "takes more than 4 s" in answer.json()["error"]["message"]
        assert (await agent.chat("b", model="bad", max_tokens=1)).status_code == 200
