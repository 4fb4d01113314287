"""The format of outputs, and how much the next turn of a chat with tools reuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.ipc.generate import OutputFormat, ToolSchema
from node.ipc.messages import Loaded
from node.parsing.selection import Formats
from node.prompt.prompt import Prompt, RenderRequest
from node.prompt.renderer import PromptRenderer
from node.prompt.renderers import Renderers
from node.prompt.scripted_tokens import ScriptedRenderer
from node.prompt.submission import generate_request
from node.request import Message, TextPart, Tool, ToolCall
from tests.node.prompt.template.samples import LAST_USER, OPEN, POOR, STRICT, WEATHER, asking
from tests.node.tokenizers import byte_level, made_folder

INFO = Loaded(0, 100, 1, vocab_size=10)
USER = Message("user", "hello")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = Tool({"name": "weather", "parameters": SCHEMA})
OPENED = "<|end|>\n<|begin|>assistant\n"


def renderer_of(folder: Path, template: str, formats: Formats | None = None) -> PromptRenderer:
    return PromptRenderer(made_folder(folder, byte_level(), template), formats)


# --- how to read an answer -------------------------------------------------------------------


def test_an_answer_is_read_by_the_formats_of_its_template(tmp_path: Path) -> None:
    renderer = renderer_of(tmp_path, OPEN)
    assert renderer.formats == Formats("think", "hermes")
    request = asking(USER, tools=(TOOL,), parallel_tool_calls=False)
    row = generate_request(request, "u", renderer.render(request), INFO)
    schemas = (ToolSchema("weather", SCHEMA),)
    assert row.output == OutputFormat("think", "hermes", OPENED, schemas, parallel_calls=False)
    bare = asking(USER, tools=(Tool({"name": "f"}),))
    row = generate_request(bare, "u", renderer.render(bare), INFO)
    assert row.output is not None
    assert row.output.tools == (ToolSchema("f"),)


def test_the_text_of_a_custom_tool_is_constrained_and_its_pattern_is_not_shown(
    tmp_path: Path,
) -> None:
    pattern = "^(?:only this)$"
    shown = {"type": "object", "properties": {"input": {"type": "string"}}}
    tool = Tool({"name": "f", "parameters": shown}, "P", is_custom=True, pattern=pattern)
    request = asking(USER, tools=(tool,))
    prompt = renderer_of(tmp_path, OPEN).render(request)
    row = generate_request(request, "u", prompt, INFO)
    constrained = {**shown, "properties": {"input": {"type": "string", "pattern": pattern}}}
    assert row.output is not None
    assert row.output.tools == (ToolSchema("f", constrained, strict_if_possible=True, param="P"),)
    plain = asking(USER, tools=(Tool({"name": "f", "parameters": shown}, is_custom=True),))
    assert renderer_of(tmp_path / "b", OPEN).render(plain).tokens == prompt.tokens


def test_tools_added_within_the_conversation_are_called_and_not_listed(tmp_path: Path) -> None:
    late = Tool({"name": "late"})
    request = asking(USER, tools=(TOOL,), late_tools=(late, Tool({"name": "weather"})))
    renderer = renderer_of(tmp_path, OPEN)
    prompt = renderer.render(request)
    assert prompt.tokens == renderer.render(asking(USER, tools=(TOOL,))).tokens
    row = generate_request(request, "u", prompt, INFO)
    assert row.output is not None
    assert row.output.tools == (ToolSchema("weather"), ToolSchema("late"))
    narrowed = replace(request, callable_tools=("late",))
    output = generate_request(narrowed, "u", prompt, INFO).output
    assert output is not None
    assert output.tools == (ToolSchema("late"),)


def test_without_tools_there_is_nothing_to_call(tmp_path: Path) -> None:
    request = asking(USER)
    row = generate_request(request, "u", renderer_of(tmp_path, OPEN).render(request), INFO)
    assert row.output == OutputFormat("think", "hermes", OPENED)
    assert row.output.tools == ()


def test_where_nothing_is_parsed_there_is_no_output_parser(tmp_path: Path) -> None:
    plain = Prompt((1,), formats=Formats("none", "auto"))
    assert generate_request(asking(USER), "u", plain, INFO).output is None
    off = Prompt((1,), formats=Formats("none", "none"))
    assert generate_request(asking(USER, tools=(TOOL,)), "u", off, INFO).output is None
    text = replace(asking(), messages=None, prompt="hello", prompt_field="prompt")
    prompt = renderer_of(tmp_path, OPEN).render(text)
    assert prompt.formats == Formats()
    assert generate_request(text, "u", prompt, INFO).output is None


def test_given_formats_override_what_the_template_shows(tmp_path: Path) -> None:
    given = Formats("none", "mistral")
    for name, template in (("open", OPEN), ("poor", POOR)):
        renderer = renderer_of(tmp_path / name, template, given)
        assert renderer.formats == renderer.render(asking(USER)).formats == given
    odd = renderer_of(tmp_path / "odd", POOR + "{# [TOOL_CALLS] #}", given)
    # What the template is known by is no choice: it shows no tools.
    assert odd.formats == Formats("none", "auto")


async def test_each_model_of_a_folder_has_its_own_formats() -> None:
    renderers, request = Renderers(), asking(USER, tools=(TOOL,))
    given = Formats("think", "hermes")
    assert (await renderers.render(Path(), RenderRequest(request), given)).formats == given
    assert (await renderers.render(Path(), RenderRequest(request))).formats == Formats()
    await renderers.close()


def test_scripted_tokens_stand_for_calls_too() -> None:
    call = Message("assistant", (TextPart("ab"),), "", (ToolCall("1", "cd", "{}"),))
    renderer = ScriptedRenderer()
    assert (
        renderer.render(asking(call)).tokens
        == renderer.render(asking(Message("user", "abcd{}"))).tokens
    )


def test_calls_are_parsed_in_the_prompted_format_where_the_template_knows_none(
    tmp_path: Path,
) -> None:
    bare = PromptRenderer(made_folder(tmp_path / "bare", byte_level(specials=False), POOR))
    assert bare.formats == Formats("none", "auto")
    assert (
        renderer_of(tmp_path / "named", POOR + "{# <tool_call> #}").formats.tool_calls == "hermes"
    )
    odd = renderer_of(tmp_path / "odd", POOR + "{# [TOOL_CALLS] #}")
    assert odd.formats.tool_calls == "auto"
    prompt = odd.render(asking(USER, tools=(TOOL,)))
    assert '{"name": "weather", ' in odd._tokenizer.decode(prompt.tokens)


def test_a_template_that_spells_calls_is_prompted_for_its_own_spelling(tmp_path: Path) -> None:
    spelled = OPEN.replace("{% if tools %}", "{% if false %}")
    for old, new in (("\n<tool_call>\n", "[TOOL_CALLS]"), ("\n</tool_call>", "")):
        spelled = spelled.replace(old, new)
    renderer = renderer_of(tmp_path, spelled)
    assert renderer.formats.tool_calls == "mistral"
    prompt = renderer.render(asking(USER, tools=(TOOL,)))
    assert '[TOOL_CALLS]{"name": "name_of_the_function"' in renderer._tokenizer.decode(
        prompt.tokens
    )


def test_tools_may_have_a_template_of_their_own(tmp_path: Path) -> None:
    folder = made_folder(tmp_path, byte_level(), None)
    named = [{"name": "default", "template": POOR}, {"name": "tool_use", "template": OPEN}]
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": named}))
    renderer = PromptRenderer(folder)
    assert renderer.formats.tool_calls == "hermes"
    with_tools = renderer._tokenizer.decode(renderer.render(asking(USER, tools=(TOOL,))).tokens)
    assert with_tools.startswith("<tools>")
    assert renderer._tokenizer.decode(renderer.render(asking(USER)).tokens).startswith("<|begin|>")


# --- what the next turn reuses ---------------------------------------------------------------

TEMPLATES = {"open": OPEN, "last user": LAST_USER, "strict": STRICT, "poor": POOR}


@pytest.fixture(scope="module")
def renderers_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PromptRenderer]:
    base = tmp_path_factory.mktemp("tools")
    return {name: renderer_of(base / name, text) for name, text in TEMPLATES.items()}


def calling(number: int, reasoning: str = "") -> tuple[Message, Message]:
    call = ToolCall(f"call_{number}", "weather", f'{{"city": "Bern {number}"}}')
    result = Message("tool", f"sunny {number}", tool_call_id=call.call_id)
    return Message("assistant", "", reasoning, (call,)), result


@pytest.mark.parametrize("name", ["open", "last user", "strict"])
def test_a_loop_of_calls_is_reused_whole(
    renderers_of: dict[str, PromptRenderer], name: str
) -> None:
    renderer = renderers_of[name]
    messages = [USER]
    before: Prompt | None = None
    for number in range(4):
        now = renderer.render(asking(*messages, tools=(WEATHER,)))
        assert now.reusable_tokens is None
        # The tools, and each message.
        assert len(now.boundaries) == 1 + len(messages)
        if before is not None:
            assert now.tokens[: len(before.tokens)] == before.tokens
        before = now
        messages += calling(number, "so")


def test_an_answer_in_a_loop_is_kept_if_its_reasoning_is_sent_back(
    renderers_of: dict[str, PromptRenderer],
) -> None:
    renderer = renderers_of["last user"]

    def opening(*messages: Message, **fields: Any) -> str:
        prompt = renderer.render(asking(*messages, **fields))
        return str(renderer._tokenizer.decode(prompt.dropped_output))

    assert opening(USER, tools=(WEATHER,)) == ""
    assert opening(USER, *calling(1, "so"), tools=(WEATHER,)) == ""
    assert opening(USER, *calling(1), tools=(WEATHER,)) == "<think>"
    assert opening(USER) == "<think>"


def test_what_a_client_gives_back_decides_what_stays(
    renderers_of: dict[str, PromptRenderer],
) -> None:
    renderer = renderers_of["open"]
    thought = Message("assistant", "hi", "so")
    prompt = renderer.render(asking(USER, thought, USER))
    assert (prompt.reusable_tokens, prompt.dropped_output) == (None, ())
    unreturned = renderer.render(asking(USER, replace(thought, reasoning=""), USER))
    assert unreturned.reusable_tokens is None
    assert renderer._tokenizer.decode(unreturned.dropped_output) == "<think>"


def test_an_answer_that_goes_on_is_reused(renderers_of: dict[str, PromptRenderer]) -> None:
    renderer = renderers_of["open"]
    begun = Message("assistant", "a b")
    prompt = renderer.render(asking(USER, begun, continue_final=True, tools=(WEATHER,)))
    assert prompt.reusable_tokens is None
    assert prompt.tail == OPENED + "a b"
    after = renderer.render(asking(USER, replace(begun, content="a b c"), USER, tools=(WEATHER,)))
    assert after.tokens[: len(prompt.tokens)] == prompt.tokens


_WORD = st.sampled_from(["hello", "the weather", " a", "b ", "\n\nthinking", "", "<tool_response>"])
_ROUND = st.tuples(_WORD, st.lists(st.tuples(_WORD, st.booleans()), max_size=3), _WORD)


@pytest.mark.parametrize("name", list(TEMPLATES))
@given(rounds=st.lists(_ROUND, max_size=3), system=st.booleans(), late=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_longer_chat_begins_with_what_is_reusable_of_the_shorter_one(
    renderers_of: dict[str, PromptRenderer],
    name: str,
    rounds: list[tuple[str, list[tuple[str, bool]], str]],
    system: bool,
    late: bool,
) -> None:
    renderer = renderers_of[name]
    messages = [Message("system", "be nice")] if system else []
    before: Prompt | None = None
    for text, calls, answer in rounds:
        messages.append(Message("user", text))
        if late and len(messages) > 2:
            messages.append(Message("system", "later"))
        for number, (result, both) in enumerate(calls):
            now = renderer.render(asking(*messages, tools=(WEATHER,)))
            if before is not None:
                kept = before.tokens[: before.reusable_tokens]
                assert now.tokens[: len(kept)] == kept
            call, returned = calling(number, "so")
            messages += [
                replace(call, content="both" if both else ""),
                replace(returned, content=result),
            ]
            cuts = (0, *now.boundaries, len(now.tokens))
            assert all(first < second for first, second in zip(cuts, cuts[1:], strict=False))
            before = now
        # A user takes away what only a loop of calls keeps.
        before = None
        messages.append(Message("assistant", answer, "so"))
