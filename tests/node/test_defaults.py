"""The settings of requests that set none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.agent.agent import Agent, Identity
from node.app import build_store
from node.defaults import Defaults, ModelDefaults
from node.engine.scripted.script import Script, encode_script
from node.engines.link import EngineLink
from node.engines.memory_budget import Budget
from node.engines.slot import EngineKind
from node.hardware import Machine
from node.ipc.generate import GenerateRequest
from node.parsing.selection import Formats
from node.prompt.prompt import Prompt
from node.prompt.scripted_tokens import ScriptedRenderer
from node.request import Message, TemplateOptions, TextRequest
from node.settings import Settings
from serving.units import GIB
from tests.node.prompt.template.samples import asking

USER = Message("user", "hello")
OFF = {"enable_thinking": False, "style": "short"}


def test_a_models_own_go_before_those_for_all_each_by_itself() -> None:
    defaults = ModelDefaults(
        (("", OFF), ("m", {"style": "long"}), ("m", {"more": 1})), (("", 100), ("m", 0))
    )
    assert defaults.of("m") == Defaults({**OFF, "style": "long", "more": 1}, 0)
    assert defaults.of("other") == Defaults(OFF, 100)
    assert ModelDefaults(thinking_tokens=[("m", 5)]).of("other") == Defaults()


def test_a_requests_own_go_before_the_defaults_each_by_itself() -> None:
    options = TemplateOptions(enable_thinking=True, kwargs={"style": "long"})
    request = asking(USER, template=options, thinking_tokens=7)
    made = Defaults(OFF, 100).of(request, reasons=True)
    assert made.template == replace(options, kwargs={**OFF, "style": "long"})
    assert made.thinking_tokens == 7
    assert Defaults(OFF, 100).of(asking(USER), reasons=True).thinking_tokens == 100
    zero = Defaults(thinking_tokens=0)
    assert zero.of(asking(USER), reasons=True).thinking_tokens == 0
    assert zero.of(replace(request, thinking_tokens=0), reasons=True).thinking_tokens == 0


def test_what_has_no_template_or_no_reasoning_has_no_default_of_it() -> None:
    completion = replace(asking(), messages=None, prompt="x")
    assert Defaults(OFF, 100).of(completion, reasons=True) is completion
    request = asking(USER)
    assert Defaults().of(request, reasons=True) is request
    assert Defaults(OFF, 100).of(request, reasons=False).thinking_tokens is None


def settings_of(**fields: Any) -> Settings:
    known = {"home": Path("/nowhere"), "engine": "scripted", "max_rows": 4}
    return Settings(**{**known, **fields})


def test_the_store_knows_each_models_defaults() -> None:
    given = {"reasoning_parsers": (("", "think"),), "max_thinking_tokens": (("", 9),)}
    [entry] = build_store(settings_of(**given)).list()
    assert entry.completed(asking(USER)).thinking_tokens == 9
    [plain] = build_store(settings_of(max_thinking_tokens=(("", 9),))).list()
    assert plain.formats == Formats("none", "none")
    assert plain.completed(asking(USER)).thinking_tokens is None


async def test_prompts_counts_and_warm_prompts_have_the_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rendered: list[TextRequest] = []
    submitted: list[GenerateRequest] = []
    render, submit = ScriptedRenderer.render, EngineLink.submit

    def rendering(self: ScriptedRenderer, request: TextRequest, *rest: Any) -> Prompt:
        rendered.append(request)
        return render(self, request, *rest)

    def submitting(self: EngineLink, request: GenerateRequest, *rest: Any) -> Any:
        submitted.append(request)
        return submit(self, request, *rest)

    monkeypatch.setattr(ScriptedRenderer, "render", rendering)
    monkeypatch.setattr(EngineLink, "submit", submitting)
    settings = settings_of(
        reasoning_parsers=(("", "think"),),
        default_chat_template_kwargs=(("", OFF),),
        max_thinking_tokens=(("", 9),),
    )
    kind = EngineKind(settings, Machine("x", 64 * GIB), encode_script(Script()))
    agent = Agent(Identity("node", "1", "chip"), build_store(settings), Budget(64 * GIB), kind)
    await agent.start()
    try:
        request = replace(asking(USER), model=agent.status().models[0].name, max_tokens=2)
        await agent.count_tokens(request)
        async for _ in agent.requests.run(agent.requests.job(request, "/", ""), 5.0):
            pass
        async for _ in await agent.warm(request.model, [request]):
            pass
    finally:
        await agent.close(0.0)
    assert [each.template.kwargs for each in rendered] == [OFF] * 3
    assert submitted[0].thinking_tokens == 9
