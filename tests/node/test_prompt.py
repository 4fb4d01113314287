"""Chat templates and tokenisers, with a tiny tokeniser made here."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from node import prompt
from node.errors import BadRequest, LoadFailure
from node.openai import TextRequest, parse_chat, parse_completion
from node.prompt import PromptRenderer, Renderers, ScriptedRenderer, generate_request
from node.types import Loaded

WORDS = ["[UNK]", "[BOS]", "<system>", "<developer>", "<user>", "<assistant>", "a", "b", "c"]
TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'c' %}{{ raise_exception('No c, please.') }}"
    "{% endif %}<{{ m.role }}> {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
INFO = Loaded(0, 100, 1, vocab_size=10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_folder(tmp_path_factory.mktemp("model"), TEMPLATE)


def made_folder(folder: Path, template: str | None) -> Path:
    """A model folder with a tokeniser of whole words."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def chat(*messages: tuple[str, Any]) -> TextRequest:
    turns = [{"role": role, "content": content} for role, content in messages]
    return parse_chat(json.dumps({"model": "m", "messages": turns}).encode())


def completion(text: Any, **fields: Any) -> TextRequest:
    return parse_completion(json.dumps({"model": "m", "prompt": text, **fields}).encode())


def words(tokens: tuple[int, ...]) -> str:
    return " ".join(WORDS[token] for token in tokens)


def test_messages_go_through_the_chat_template_without_a_second_bos(folder: Path) -> None:
    renderer = PromptRenderer(folder)
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    tokens = renderer.render(chat(("system", "a"), ("user", parts)))
    assert words(tokens) == "<system> a <user> a b <assistant>"


def test_a_developer_is_a_system_to_a_template_that_knows_none(
    folder: Path, tmp_path: Path
) -> None:
    request = chat(("developer", "a"), ("user", "b"))
    tokens = PromptRenderer(folder).render(request)
    assert words(tokens) == "<system> a <user> b <assistant>"
    knowing = made_folder(tmp_path, TEMPLATE + "{# developer #}")
    assert words(PromptRenderer(knowing).render(request)).startswith("<developer> a")


def test_a_template_that_refuses_is_a_bad_request_about_messages(folder: Path) -> None:
    with pytest.raises(BadRequest, match=r"No c, please") as caught:
        PromptRenderer(folder).render(chat(("user", "c")))
    assert caught.value.param == "messages"


def test_a_model_without_a_template_takes_completions_only(tmp_path: Path) -> None:
    renderer = PromptRenderer(made_folder(tmp_path, None))
    with pytest.raises(BadRequest, match="no chat template") as caught:
        renderer.render(chat(("user", "a")))
    assert caught.value.param == "messages"
    assert words(renderer.render(completion("a b"))) == "[BOS] a b"


def test_token_ids_pass_as_they_are(folder: Path) -> None:
    assert PromptRenderer(folder).render(completion([6, 7])) == (6, 7)
    assert ScriptedRenderer().render(completion([6, 7])) == (6, 7)


def test_scripted_tokens_stand_for_four_characters_each() -> None:
    renderer = ScriptedRenderer()
    short = renderer.render(chat(("user", "abcd")))
    long = renderer.render(chat(("user", "abcd"), ("user", "efghi")))
    assert len(short) == 1
    assert len(long) == 3
    assert long[:1] == short
    assert renderer.render(completion("abcd")) == short
    assert len(renderer.render(completion(""))) == 1


async def test_a_folder_is_loaded_once_and_its_failure_is_tried_again(
    folder: Path, tmp_path: Path
) -> None:
    renderers = Renderers()
    first, second = await asyncio.gather(renderers.get(folder), renderers.get(folder))
    assert first is second
    for _ in range(2):
        with pytest.raises(LoadFailure, match="cannot be loaded"):
            await renderers.get(tmp_path)
    made_folder(tmp_path, TEMPLATE)
    assert isinstance(await renderers.get(tmp_path), PromptRenderer)
    assert isinstance(await renderers.get(Path()), ScriptedRenderer)


async def test_one_that_stops_waiting_does_not_cancel_the_load(folder: Path) -> None:
    renderers = Renderers()
    renderers.begin(folder)
    waiting = asyncio.create_task(renderers.get(folder))
    await asyncio.wait({waiting}, timeout=0)
    waiting.cancel()
    assert isinstance(await renderers.get(folder), PromptRenderer)


LONG = prompt.THREAD_LENGTH + 1


@pytest.mark.parametrize(
    ("request_", "in_thread"),
    [
        (completion("x" * 10), False),
        (completion("x" * LONG), True),
        (chat(("user", "x" * 10)), False),
        (chat(("user", "x" * LONG)), True),
        (chat(*[("user", "")] * (LONG // prompt.MESSAGE_LENGTH + 1)), True),
    ],
    ids=["short text", "long text", "short chat", "long chat", "many empty messages"],
)
async def test_long_prompts_are_rendered_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, request_: TextRequest, *, in_thread: bool
) -> None:
    threads: list[str] = []

    def recording(_self: ScriptedRenderer, _request: TextRequest) -> tuple[int, ...]:
        threads.append(threading.current_thread().name.partition("_")[0])
        return (1,)

    monkeypatch.setattr(ScriptedRenderer, "render", recording)
    renderers = Renderers()
    assert await renderers.render(Path(), request_) == (1,)
    renderers.close()
    assert threads == ["render" if in_thread else threading.current_thread().name]


async def test_nothing_else_waits_for_long_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = threading.Event()

    def slow(_self: ScriptedRenderer, _request: TextRequest) -> tuple[int, ...]:
        assert ending.wait(10)
        return (1,)

    monkeypatch.setattr(ScriptedRenderer, "render", slow)
    renderers = Renderers()
    many = [renderers.render(Path(), completion("x" * LONG)) for _ in range(64)]
    waiting = asyncio.gather(*many)
    async with asyncio.timeout(10):
        # More of them than there are threads of any kind.
        assert await asyncio.to_thread(lambda: "soon") == "soon"
        assert not waiting.done()
        ending.set()
        assert await waiting == [(1,)] * 64
    renderers.close()


def test_a_row_takes_over_what_the_request_asks_for() -> None:
    request = completion([1, 2], max_tokens=3, stop="x", top_k=5, logit_bias={"9": 1})
    row = generate_request(request, "u", (1, 2), INFO)
    assert (row.uid, row.tokens, row.max_tokens, row.stops) == ("u", (1, 2), 3, ("x",))
    assert row.sampling == request.sampling
    assert generate_request(completion([1], top_k=10), "u", (1,), INFO).sampling.top_k == 0


@pytest.mark.parametrize(
    ("request_", "param"),
    [(completion([10]), "prompt"), (completion([1], logit_bias={"10": 1}), "logit_bias")],
)
def test_tokens_beyond_the_vocabulary_are_refused(request_: TextRequest, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        generate_request(request_, "u", (1,), INFO)
    assert caught.value.param == param
