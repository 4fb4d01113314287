"""Chat templates and tokenizers, with a tiny tokenizer made here."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.errors import BadRequest, ContextTooLong, LoadFailure
from node.prompt.prompt import Prompt
from node.prompt.renderer import PromptRenderer
from node.prompt.template.chat import MARKERS
from node.prompt.template.chat_template import ChatTemplate
from node.protocol.overflow import Overflow
from node.request import TextPart, TextRequest
from tests.node.model_folders import bring_code, make_model
from tests.node.prompt.words import TEMPLATE, chat, completion, words, words_folder
from tests.node.tokenizers import byte_level, made_folder, metaspace, prepending


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_folder(tmp_path_factory.mktemp("model"), TEMPLATE)


def test_messages_go_through_the_chat_template_without_a_second_bos(folder: Path) -> None:
    renderer = PromptRenderer(folder)
    parts = (TextPart("a "), TextPart("b"))
    tokens = renderer.render(chat(("system", "a"), ("user", parts)))
    assert words(tokens) == "<system> a <user> a b <assistant>"


def test_a_developer_is_a_system_to_a_template_that_knows_none(
    folder: Path, tmp_path: Path
) -> None:
    request = chat(("developer", "a"), ("user", "b"))
    tokens = PromptRenderer(folder).render(request)
    assert words(tokens) == "<system> a <user> b <assistant>"
    knowing = words_folder(tmp_path, TEMPLATE + "{# developer #}")
    assert words(PromptRenderer(knowing).render(request)).startswith("<developer> a")


def test_a_template_that_refuses_is_a_bad_request_about_messages(folder: Path) -> None:
    with pytest.raises(BadRequest, match=r"No c, please") as caught:
        PromptRenderer(folder).render(chat(("user", "c")))
    assert caught.value.param == "messages"


def test_a_model_without_a_template_accepts_completions_only(tmp_path: Path) -> None:
    renderer = PromptRenderer(words_folder(tmp_path, None))
    with pytest.raises(BadRequest, match="no chat template") as caught:
        renderer.render(chat(("user", "a")))
    assert caught.value.param == "messages"
    assert words(renderer.render(completion("a b"))) == "[BOS] a b"


def test_a_tokenizer_of_its_own_code_is_not_loaded(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    ran = bring_code(folder)
    with pytest.raises(LoadFailure, match="The tokenizer of model cannot be loaded"):
        PromptRenderer(folder)
    assert not ran.exists()


def test_token_ids_pass_as_they_are(folder: Path) -> None:
    assert PromptRenderer(folder).render(completion((6, 7))) == Prompt((6, 7))


# --- what does not fit -----------------------------------------------------------------------

LONG_TEXT = "the weather in Paris is fine today. " * 20_000


@pytest.mark.parametrize("request_", [chat(("user", LONG_TEXT)), completion(LONG_TEXT)])
@pytest.mark.parametrize("make", ["render", "render_shared"])
def test_a_prompt_beyond_the_context_is_refused_with_a_number(
    tmp_path: Path, request_: TextRequest, make: str
) -> None:
    renderer = PromptRenderer(made_folder(tmp_path, byte_level(), CHATML))
    render = getattr(renderer, make)
    tokens = len(render(request_).tokens)
    with pytest.raises(ContextTooLong) as caught:
        render(request_, tokens)
    assert caught.value.overflow == Overflow(tokens, tokens)
    assert caught.value.param == request_.prompt_field
    assert len(render(request_, tokens + 1).tokens) == tokens
    with pytest.raises(ContextTooLong) as caught:
        render(request_, 1000)
    assert caught.value.overflow.context_tokens == 1000
    assert caught.value.overflow.prompt_tokens == pytest.approx(tokens, rel=0.05)


@pytest.mark.parametrize("tokens", [(6,) * 20, (6, 7)])
def test_token_ids_are_counted_as_they_are(folder: Path, tokens: tuple[int, ...]) -> None:
    with pytest.raises(ContextTooLong) as caught:
        PromptRenderer(folder).render(completion(tokens), 2)
    assert caught.value.overflow == Overflow(len(tokens), 2)


def test_nothing_more_is_made_of_a_chat_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = PromptRenderer(made_folder(tmp_path, byte_level(), CHATML))
    rendered: list[int] = []
    render = ChatTemplate.render

    def counting(self: ChatTemplate, turns: Any, *rest: Any, **options: Any) -> str:
        rendered.append(len(turns))
        return render(self, turns, *rest, **options)

    monkeypatch.setattr(ChatTemplate, "render", counting)
    with pytest.raises(ContextTooLong):
        renderer.render(chat(("user", LONG_TEXT)), 1000)
    assert rendered == [1]


# --- what the next turn reuses ---------------------------------------------------------------

_TURN = "<|begin|>{{ m.role }}\n{{ content }}<|end|>\n"
_OPEN = "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
_STRIP = "{% if '</think>' in content %}{% set content = content.split('</think>')[1] %}{% endif %}"
_LOOP = "{% for m in messages %}{% set content = m.content %}"
CHATML = _LOOP + _TURN + "{% endfor %}" + _OPEN
THINKING = (
    _LOOP + _STRIP + _TURN + "{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n<think>\n{% endif %}"
)
LAST_QUERY = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    + _LOOP
    + "{% if loop.index0 < ns.last %}"
    + _STRIP
    + "{% endif %}"
    + _TURN
    + "{% endfor %}"
    + _OPEN
)
TRIMMING = _LOOP + "{% set content = content | trim %}" + _TURN + "{% endfor %}" + _OPEN
PLAIN = (
    "{% for m in messages %}{{ m.role | capitalize }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
ALTERNATING = (
    "{% set first = 1 if messages[0].role == 'system' else 0 %}{% for m in messages %}"
    "{% if m.role != 'system' and (m.role == 'user') != ((loop.index0 - first) % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}{% endfor %}" + CHATML
)
SYSTEM_LAST = (
    "{% for m in messages %}{% if m.role == 'user' %}<|begin|>"
    "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}"
    "{{ m.content }}<|end|>{% elif m.role == 'assistant' %}{{ m.content }}<|end|>"
    "{% endif %}{% endfor %}"
)
QUOTING = (
    "{% for m in messages %}<|begin|>{{ m.content | tojson }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>{% endif %}"
)
TEMPLATES = {
    "quoting": QUOTING,
    "chatml": CHATML,
    "thinking": THINKING,
    "last query": LAST_QUERY,
    "trimming": TRIMMING,
    "plain": PLAIN,
    "alternating": ALTERNATING,
    "system last": SYSTEM_LAST,
}


@pytest.fixture(scope="module")
def renderers_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PromptRenderer]:
    base = tmp_path_factory.mktemp("templates")
    tokenizer = byte_level()
    return {
        name: PromptRenderer(made_folder(base / name, tokenizer, template))
        for name, template in TEMPLATES.items()
    }


def parts_of(renderer: PromptRenderer, prompt: Prompt) -> list[str]:
    """Returns the prompt's text, cut at its boundaries and at the end of the reusable part."""
    reusable = len(prompt.tokens) if prompt.reusable_tokens is None else prompt.reusable_tokens
    cuts = [0, *sorted({*prompt.boundaries, reusable}), len(prompt.tokens)]
    return [
        renderer._tokenizer.decode(prompt.tokens[begin:end])
        for begin, end in zip(cuts, cuts[1:], strict=False)
        if begin < end
    ]


SYSTEM, USER, ASSISTANT = ("system", "the tool"), ("user", "hello"), ("assistant", "a b")


def test_a_prompt_is_cut_at_the_end_of_each_message(
    renderers_of: dict[str, PromptRenderer],
) -> None:
    renderer = renderers_of["chatml"]
    prompt = renderer.render(chat(SYSTEM, USER))
    assert prompt.reusable_tokens is None
    assert parts_of(renderer, prompt) == [
        "<|begin|>system\nthe tool",
        "<|end|>\n<|begin|>user\nhello",
        "<|end|>\n<|begin|>assistant\n",
    ]


def test_what_opens_the_thinking_is_not_reusable(renderers_of: dict[str, PromptRenderer]) -> None:
    renderer = renderers_of["thinking"]
    prompt = renderer.render(chat(USER))
    assert parts_of(renderer, prompt) == [
        "<|begin|>user\nhello",
        "<|end|>\n<|begin|>",
        "assistant\n<think>\n",
    ]


def test_reasoning_that_the_next_turn_drops_is_not_reusable(
    renderers_of: dict[str, PromptRenderer],
) -> None:
    renderer = renderers_of["last query"]
    thought = ("assistant", "<think>so</think>fine")
    prompt = renderer.render(chat(USER, thought))
    assert parts_of(renderer, prompt)[:2] == ["<|begin|>user\nhello", "<|end|>\n<|begin|>"]
    prompt = renderer.render(chat(USER, thought, USER))
    assert prompt.reusable_tokens is None
    assert len(prompt.boundaries) == 3


@pytest.mark.parametrize(
    ("name", "opening"),
    [("last query", "<think>"), ("chatml", "<think>"), ("thinking", ""), ("plain", "")],
)
def test_an_answer_with_reasoning_that_the_next_turn_drops_is_not_kept(
    renderers_of: dict[str, PromptRenderer], name: str, opening: str
) -> None:
    renderer = renderers_of[name]
    dropped = renderer.render(chat(USER)).dropped_output
    assert renderer._tokenizer.decode(dropped) == opening
    assert len(dropped) == (1 if opening else 0)


@pytest.mark.parametrize(
    ("template", "opening"),
    [
        (LAST_QUERY.replace("think>", "seed:think>"), "<seed:think"),
        (LAST_QUERY.replace("</think>", "[/THINK]"), "[THINK"),
        (LAST_QUERY.replace("think>", "tool_call>"), "<tool_call"),
    ],
)
def test_a_template_may_drop_a_part_of_another_name(
    tmp_path: Path, template: str, opening: str
) -> None:
    tokenizer = byte_level(specials=False)
    renderer = PromptRenderer(made_folder(tmp_path, tokenizer, template))
    dropped = renderer.render(chat(USER)).dropped_output
    # The last character may be one token with the text behind it.
    assert renderer._tokenizer.decode(dropped).startswith(opening)


@pytest.mark.parametrize("make", [byte_level, metaspace, prepending])
def test_what_a_tokenizer_puts_behind_the_opening_is_no_part_of_it(
    tmp_path: Path, make: Any
) -> None:
    renderer = PromptRenderer(made_folder(tmp_path, make(), LAST_QUERY))
    dropped = renderer.render(chat(USER)).dropped_output
    assert renderer._tokenizer.convert_ids_to_tokens(dropped) == ["<think>"]


@pytest.mark.parametrize("name", ["chatml", "last query", "alternating", "trimming", "quoting"])
@pytest.mark.parametrize("answer", ["a b", "<think>\nr\n</think>\n\na b", "a <think>r</think>b"])
def test_the_next_prompt_begins_with_an_answer_that_is_kept(
    renderers_of: dict[str, PromptRenderer], name: str, answer: str
) -> None:
    renderer = renderers_of[name]
    before = renderer.render(chat(USER))
    answered = renderer._encode(answer)
    dropped = before.dropped_output
    if before.reusable_tokens is None and not (dropped and answered[: len(dropped)] == dropped):
        after = renderer.render(chat(USER, ("assistant", answer), USER))
        # Templates are not probed for reasoning in the middle of a response.
        if not (name == "last query" and answer.startswith("a <think>")):
            kept = before.tokens + answered
            assert after.tokens[: len(kept)] == kept


@pytest.mark.parametrize("make", [byte_level, metaspace, prepending])
def test_any_tokenizer_is_cut_at_the_end_of_each_message(tmp_path: Path, make: Any) -> None:
    renderer = PromptRenderer(made_folder(tmp_path, make(), CHATML))
    messages = [("system", "the 🎉"), ("user", "é x<|rest|>  a"), ASSISTANT, ("user", "today")]
    whole = renderer.render(chat(*messages))
    assert len(whole.boundaries) == len(messages)
    assert whole.reusable_tokens is None
    texts = [text.replace("<unk>", "🎉").rstrip() for text in parts_of(renderer, whole)]
    assert [text[-1] for text in texts[:-1]] == ["🎉", "a", "b", "y"]
    for count in (1, 2, 3):
        shared = renderer.render_shared(chat(*messages[:count]))
        assert whole.tokens[: len(shared.tokens)] == shared.tokens
    for count in (2, 3):
        before = renderer.render(chat(*messages[:count]))
        reusable = before.tokens[: before.reusable_tokens]
        assert whole.tokens[: len(reusable)] == reusable


def test_an_answer_at_the_end_is_reused_with_all_that_is_before_it(
    renderers_of: dict[str, PromptRenderer],
) -> None:
    for name in ("chatml", "thinking", "last query", "trimming", "alternating", "quoting"):
        renderer = renderers_of[name]
        messages = [SYSTEM, USER, ASSISTANT]
        now = renderer.render(chat(*messages))
        assert len(now.boundaries) == 3
        after = renderer.render(chat(*messages, ("user", "today")))
        assert now.reusable_tokens is not None
        assert now.reusable_tokens > now.boundaries[-1]
        assert after.tokens[: now.reusable_tokens] == now.tokens[: now.reusable_tokens]


def test_contents_may_hold_characters_for_private_use(
    renderers_of: dict[str, PromptRenderer],
) -> None:
    renderer = renderers_of["chatml"]
    odd = "".join(MARKERS[:9])
    found = renderer.render(chat(("system", odd + "a"), ("user", odd)))
    assert parts_of(renderer, found)[:2] == [
        f"<|begin|>system\n{odd}a",
        f"<|end|>\n<|begin|>user\n{odd}",
    ]
    assert found.reusable_tokens is None


@pytest.mark.parametrize("content", ["hello", "hello \n ", " \n hello"])
def test_space_that_a_template_strips_changes_nothing(
    renderers_of: dict[str, PromptRenderer], content: str
) -> None:
    renderer = renderers_of["trimming"]
    prompt = renderer.render(chat(("user", content)))
    assert prompt == renderer.render(chat(USER))
    assert prompt.reusable_tokens is None
    assert len(prompt.boundaries) == 1


def test_a_system_message_that_wanders_is_kept_at_its_place(
    renderers_of: dict[str, PromptRenderer],
) -> None:
    prompt = renderers_of["system last"].render(chat(SYSTEM, USER))
    # All of it, and the answer behind it.
    assert prompt.reusable_tokens is None
    assert len(prompt.boundaries) == 2


def test_a_text_that_changes_at_its_begin_is_not_reusable(tmp_path: Path) -> None:
    wandering = "<|begin|>{{ messages | length }}" + CHATML
    prompt = PromptRenderer(made_folder(tmp_path, byte_level(), wandering)).render(chat(USER))
    assert prompt.reusable_tokens == 1
    assert prompt.boundaries == ()


def test_a_template_that_refuses_the_next_turn_gives_no_boundaries(tmp_path: Path) -> None:
    only = "{% if messages | length > 1 %}{{ raise_exception('One, please.') }}{% endif %}" + CHATML
    renderer = PromptRenderer(made_folder(tmp_path, byte_level(), only))
    prompt = renderer.render(chat(USER))
    assert (prompt.boundaries, prompt.reusable_tokens) == ((), None)
    assert parts_of(renderer, renderer.render_shared(chat(USER))) == [
        "<|begin|>user\nhello<|end|>\n"
    ]


def test_a_template_without_the_contents_gives_no_boundaries(tmp_path: Path) -> None:
    renderer = PromptRenderer(made_folder(tmp_path, byte_level(), "<|begin|>hello"))
    found = renderer.render(chat(USER))
    assert (found.boundaries, found.reusable_tokens) == ((), len(found.tokens))
    full = renderer.render(chat(("user", "".join(MARKERS))))
    assert (full.boundaries, full.reusable_tokens) == ((), None)


def test_completions_have_no_boundaries(renderers_of: dict[str, PromptRenderer]) -> None:
    renderer = renderers_of["chatml"]
    text = "<|begin|>user\nhello<|end|>"
    for render in (renderer.render, renderer.render_shared):
        found = render(completion(text))
        assert (found.boundaries, found.reusable_tokens) == ((), None)


_WORD = st.sampled_from(["hello", "the weather", " a", "b ", "\n\nthinking", "🎉", "", "<|end|>"])
_CONTENT = st.lists(_WORD, max_size=3).map("".join)
_ANSWER = st.tuples(st.booleans(), _CONTENT).map(
    lambda item: f"<think>x</think>{item[1]}" if item[0] else item[1]
)


@pytest.mark.parametrize("name", list(TEMPLATES))
@given(system=st.none() | _CONTENT, turns=st.lists(st.tuples(_CONTENT, _ANSWER), max_size=4))
@settings(max_examples=60, deadline=None)
def test_what_is_reusable_is_what_the_next_prompt_begins_with(
    renderers_of: dict[str, PromptRenderer],
    name: str,
    system: str | None,
    turns: list[tuple[str, str]],
) -> None:
    renderer = renderers_of[name]
    messages = [] if system is None else [("system", system)]
    before: Prompt | None = None
    for text, answer in turns:
        messages.append(("user", text))
        now = renderer.render(chat(*messages))
        if before is not None:
            assert (
                now.tokens[: before.reusable_tokens or len(before.tokens)]
                == (before.tokens[: before.reusable_tokens])
            )
        cuts = (0, *now.boundaries, len(now.tokens))
        assert all(first < second for first, second in zip(cuts, cuts[1:], strict=False))
        assert len(now.boundaries) <= len(messages)
        messages.append(("assistant", answer))
        before = now


@pytest.mark.parametrize("name", ["chatml", "thinking", "last query", "trimming", "alternating"])
def test_what_is_shared_is_what_every_longer_prompt_begins_with(
    renderers_of: dict[str, PromptRenderer], name: str
) -> None:
    renderer = renderers_of[name]
    for messages in ([SYSTEM], [SYSTEM, USER], [SYSTEM, USER, ASSISTANT]):
        shared = renderer.render_shared(chat(*messages))
        assert len(shared.boundaries) == len(messages) - 1
        more = [] if messages[-1][0] == "user" else [("user", "today")]
        longer = renderer.render(chat(*messages, *more))
        assert longer.tokens[: len(shared.tokens)] == shared.tokens
        assert parts_of(renderer, shared)[-1].endswith(messages[-1][1])
