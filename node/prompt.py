"""From a request to token ids: the only caller of chat templates and tokenisers.

It runs in the agent process, with the transformers library and without MLX. A chat is rendered
twice, and tokenised once: as the prompt, and as the text that the next turn's prompt will begin
with, which tells where messages end and what of the prompt the next turn can reuse.
"""

import asyncio
import zlib
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from node.encoder import PromptEncoder
from node.errors import BadRequest, LoadFailure
from node.generate import GenerateRequest, OutputFormat, ToolSchema
from node.parsing.selection import AUTO, NONE, Formats, select_formats
from node.request import TextRequest
from node.template.chat import ANSWER, Chat, ChatRenderer, gives_reasoning
from node.template.chat_template import ChatTemplate, import_transformers
from node.template.cuts import boundaries, find_chat_places, reusable_tokens
from node.template.dropped import Encode, find_dropped, parts_of_answers
from node.template.places import Places, bare_places, length_of, whole_text
from node.types import Loaded

THREAD_LENGTH = 16 * 1024
"""A prompt of more characters is rendered in a thread, so that it stalls no stream."""
MESSAGE_LENGTH = 32
"""What a message adds, in characters: a template takes its time for an empty one, too."""
RENDER_THREADS = 4


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered request; the fields as in `GenerateRequest` and `OutputFormat`."""

    tokens: tuple[int, ...]
    boundaries: tuple[int, ...] = ()
    reusable_tokens: int | None = None
    dropped_answer: tuple[int, ...] = ()
    formats: Formats = Formats()
    """Of the answer; none for a completion."""
    tail: str = ""
    places: Places | None = field(default=None, compare=False, repr=False)
    """Of the body's items; None where they are not known."""


class Renderer(Protocol):
    """Makes token ids of a request's messages or prompt."""

    @property
    def formats(self) -> Formats:
        """Of answers to chats with tools."""

    def render(self, request: TextRequest) -> Prompt:
        """Raises `BadRequest` naming the field that cannot be rendered."""

    def render_shared(self, request: TextRequest) -> Prompt:
        """What the prompts of all requests begin with that begin with the same messages. Raises
        as `render`."""


class _ModelChat:
    """One chat template of a model: its prompts, and how its answers are read."""

    def __init__(
        self,
        template: ChatTemplate,
        vocabulary: Collection[str],
        formats: Formats | None,
        encode: Encode,
    ) -> None:
        told = select_formats(template.text, vocabulary)
        formats = formats or told
        self.renderer = ChatRenderer(template, formats.tool_calls)
        abilities = self.renderer.abilities
        is_asked = not (abilities.tools or abilities.example_call)
        if is_asked and formats.tool_calls == told.tool_calls != "hermes":
            # The model spells calls as it is asked to, or in a way of its own.
            formats = formats._replace(tool_calls=AUTO)
        self.formats = formats
        parts = parts_of_answers(template.text, vocabulary)
        self._openings = tuple(part.opening for part in parts if part.is_reasoning)
        reads_reasoning = self.formats.reasoning != NONE
        self._dropped = find_dropped(self.renderer, parts, encode, reads_reasoning=reads_reasoning)

    def dropped(self, request: TextRequest) -> tuple[int, ...]:
        """First tokens of answers that the next turn's prompt does not repeat."""
        if not gives_reasoning(request.messages or ()):
            return self._dropped.unreturned
        return self._dropped.at_result if self._awaits_call(request) else self._dropped.at_user

    def is_repeated(self, request: TextRequest, chat: Chat) -> bool:
        """Whether the next turn's prompt goes on with the answer behind this one."""
        if chat.following is None or chat.shared < len(chat.text):
            return False
        if self._awaits_call(request) and not request.continue_final:
            return True
        return chat.following.text.startswith((ANSWER, *self._openings), chat.shared)

    def _awaits_call(self, request: TextRequest) -> bool:
        return bool(request.tools) and self.renderer.abilities.calls


class PromptRenderer:
    """The tokeniser and the chat template of one model folder."""

    def __init__(
        self, folder: Path, formats: Formats | None = None, *, normalise: bool = True
    ) -> None:
        """`formats`: of its answers; None: as template and vocabulary tell. `normalise` as in
        `ChatTemplate`. Slow: to be called in a thread. Raises `LoadFailure` with a sentence."""
        self._normalise = normalise
        transformers = import_transformers()
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
            # The first call settles truncation and padding, after which threads may share it.
            self._tokenizer.encode("a", add_special_tokens=False)
        except Exception as exc:
            raise LoadFailure(f"The tokeniser of {folder.name} cannot be loaded: {exc}") from exc
        self._encoder: PromptEncoder | None = None
        if self._tokenizer.is_fast:
            self._encoder = PromptEncoder(self._tokenizer.backend_tokenizer)
        self._chats = self._load_chats(formats)

    @property
    def formats(self) -> Formats:
        with_tools = self._chats.get(True)
        return Formats() if with_tools is None else with_tools.formats

    def render(self, request: TextRequest) -> Prompt:
        if request.messages is None:
            return self._completion(request)
        model = self._chat(request)
        chat = model.renderer.render(request)
        if self._encoder is None:
            return Prompt(self._encode(chat.text), formats=model.formats, tail=chat.tail)
        encoded = self._encoder.encode(chat.text)
        tokens, following = tuple(encoded.ids), chat.following
        if following is None:
            return Prompt(tokens, formats=model.formats, tail=chat.tail)
        reusable = (
            None if model.is_repeated(request, chat) else reusable_tokens(encoded, chat.shared)
        )
        return Prompt(
            tokens,
            boundaries(encoded, following, chat.shared),
            reusable,
            model.dropped(request),
            model.formats,
            chat.tail,
            find_chat_places(request, chat, encoded),
        )

    def render_shared(self, request: TextRequest) -> Prompt:
        if request.messages is None:
            return self._completion(request)
        renderer = self._chat(request).renderer
        following = renderer.render_shared(request)
        if self._encoder is None or following is None or not following.ends:
            # The generation prompt is not shared with requests that go on otherwise.
            return Prompt(self._encode(renderer.apply(request, request.messages, generation=False)))
        encoded = self._encoder.encode(following.text[: following.ends[-1]])
        return Prompt(tuple(encoded.ids), boundaries(encoded, following, len(encoded.text)))

    def _load_chats(self, formats: Formats | None) -> dict[bool, _ModelChat]:
        """By whether a request has tools; none without a template."""
        vocabulary = self._tokenizer.get_vocab()
        by_text: dict[str, _ModelChat] = {}
        chats = {}
        for has_tools in (False, True):
            try:
                # Some models have a template of its own for tools.
                text = str(self._tokenizer.get_chat_template(tools=[{}] if has_tools else None))
            except ValueError:
                continue
            if text not in by_text:
                template = ChatTemplate(
                    text, self._tokenizer.special_tokens_map, normalise=self._normalise
                )
                by_text[text] = _ModelChat(template, vocabulary, formats, self._encode)
            chats[has_tools] = by_text[text]
        return chats

    def _chat(self, request: TextRequest) -> _ModelChat:
        found = self._chats.get(bool(request.tools))
        if found is None:
            raise BadRequest(
                "The model has no chat template; use /v1/completions.", param="messages"
            )
        return found

    def _completion(self, request: TextRequest) -> Prompt:
        if isinstance(request.prompt, tuple):
            return _ids_prompt(request.prompt)
        if self._encoder is None:
            return _text_prompt(tuple(self._tokenizer.encode(request.prompt)))
        encoded = self._encoder.encode(request.prompt or "")
        before, after = self._encoder.around
        tokens = (*before, *encoded.ids, *after)
        return _text_prompt(
            tokens, encoded.text, lambda length: len(before) + encoded.tokens_within(length)
        )

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


def _text_prompt(
    tokens: tuple[int, ...], text: str = "", within: Callable[[int], int] | None = None
) -> Prompt:
    """Of a completion. `within` as `Places.tokens_within`, if it is known."""
    if not tokens:
        raise BadRequest("The prompt is empty.", param="prompt")
    return Prompt(tokens, places=None if within is None else whole_text(text, len(text), within))


def _ids_prompt(tokens: tuple[int, ...]) -> Prompt:
    """Of token ids, which have four bytes each in a chain."""
    return Prompt(tokens, places=whole_text("", 4 * len(tokens), lambda length: length // 4))


class ScriptedRenderer:
    """Token ids without a tokeniser, for the scripted engine: one for each 4 characters."""

    def __init__(self, formats: Formats | None = None) -> None:
        self._formats = formats or Formats()

    @property
    def formats(self) -> Formats:
        return self._formats

    def render(self, request: TextRequest) -> Prompt:
        if isinstance(request.prompt, tuple):
            return _ids_prompt(request.prompt)
        if request.messages is None:
            text = request.prompt or ""
            return Prompt(_crc_tokens(text), places=whole_text(text, len(text), _quarter))
        places = bare_places(request.messages, _quarter)
        # The next turn's text goes on within the last token.
        tokens, reusable = _crc_tokens(places.text), _quarter(len(places.text))
        return Prompt(tokens, (), reusable, formats=self._formats, places=places)

    def render_shared(self, request: TextRequest) -> Prompt:
        return self.render(request)


def _crc_tokens(text: str) -> tuple[int, ...]:
    data = text.encode("utf-32-le", "surrogatepass")
    return tuple(zlib.crc32(data[i : i + 16]) for i in range(0, len(data) or 1, 16))


def _quarter(length: int) -> int:
    return length // 4


class Renderers:
    """One renderer for each model folder and its formats, loaded once however many wait; and the
    threads that render, which nothing else shares, so that nothing else waits for a long prompt."""

    def __init__(self) -> None:
        self._loads: dict[tuple[Path, Formats | None], asyncio.Future[Renderer]] = {}
        self._threads = ThreadPoolExecutor(RENDER_THREADS, thread_name_prefix="render")

    def close(self) -> None:
        """Renders no more; what runs is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def begin(self, folder: Path, formats: Formats | None = None) -> asyncio.Future[Renderer]:
        """Starts the load of the folder's renderer, unless it is loaded or being loaded.
        `formats`: of the answers; None: as the folder tells."""
        key = (folder, formats)
        load = self._loads.get(key)
        if load is None or (load.done() and (load.cancelled() or load.exception() is not None)):
            load = self._loads[key] = asyncio.ensure_future(_load(folder, formats))
        return load

    async def get(self, folder: Path, formats: Formats | None = None) -> Renderer:
        """The folder's renderer; a scripted one for the empty path. Raises `LoadFailure`."""
        load = self.begin(folder, formats)
        if not load.done():
            # Unlike an await of the load, its end of waiting does not cancel it for the others.
            await asyncio.wait({load})
        return load.result()

    async def render(
        self,
        folder: Path,
        request: TextRequest,
        formats: Formats | None = None,
        *,
        shared: bool = False,
    ) -> Prompt:
        """The request's prompt, or what it shares with later ones; made in a thread if it is
        long. Raises `BadRequest` or `LoadFailure`."""
        renderer = await self.get(folder, formats)
        render = renderer.render_shared if shared else renderer.render
        if not _is_long(request):
            return render(request)
        return await asyncio.get_running_loop().run_in_executor(self._threads, render, request)


async def _load(folder: Path, formats: Formats | None) -> Renderer:
    if folder == Path():
        return ScriptedRenderer(formats)
    return await asyncio.to_thread(PromptRenderer, folder, formats)


def generate_request(
    request: TextRequest, uid: str, prompt: Prompt, info: Loaded
) -> GenerateRequest:
    """The row to ask of the engine. Raises `BadRequest` for a token id that the model has not."""
    sampling, vocab_size = request.sampling, info.vocab_size
    if any(token >= vocab_size for token, _ in sampling.logit_bias):
        raise BadRequest(
            f"logit_bias names a token beyond the vocabulary of {vocab_size}.", param="logit_bias"
        )
    if isinstance(request.prompt, tuple) and max(request.prompt) >= vocab_size:
        raise BadRequest(
            f"prompt holds a token beyond the vocabulary of {vocab_size}.", param="prompt"
        )
    if sampling.top_k >= vocab_size:
        sampling = msgspec.structs.replace(sampling, top_k=0)
    return GenerateRequest(
        uid,
        prompt.tokens,
        request.max_tokens,
        sampling,
        request.stops,
        prompt.boundaries,
        prompt.reusable_tokens,
        prompt.dropped_answer,
        output=_output(request, prompt),
        constraint=request.constraint,
        thinking_tokens=request.thinking_tokens,
        logprobs=request.logprobs,
        choices=request.choices,
    )


def _output(request: TextRequest, prompt: Prompt) -> OutputFormat | None:
    """How to read the answer; None where nothing is to be told apart."""
    reasoning, tool_calls = prompt.formats
    if not request.tools and tool_calls == AUTO:
        # Such a model has no markup of its own that could show.
        tool_calls = NONE
    # A call that cannot be forced is for the engine to refuse.
    if reasoning == tool_calls == NONE and not request.must_call:
        return None
    # Without any the markup of calls is text, which the engine must know to keep its tokens.
    tools = _callable(request) if tool_calls != NONE else ()
    return OutputFormat(
        reasoning,
        tool_calls,
        prompt.tail,
        tools,
        request.parallel_tool_calls,
        must_call=request.must_call,
        must_call_param=request.must_call_param,
    )


def _callable(request: TextRequest) -> tuple[ToolSchema, ...]:
    wanted = request.callable_tools
    return tuple(
        ToolSchema(
            tool.name,
            dict(tool.parameters),
            strict=tool.function.get("strict") is True,
            param=tool.param,
        )
        for tool in request.tools
        if wanted is None or tool.name in wanted
    )


def _is_long(request: TextRequest) -> bool:
    """Whether the request is too much for the event loop's thread."""
    if request.messages is None:
        return len(request.prompt or "") > THREAD_LENGTH
    # Templates spell tools with programs of some size.
    length = THREAD_LENGTH + 1 if request.tools else 0
    for message in request.messages:
        if length > THREAD_LENGTH:
            return True
        length += length_of(message) + MESSAGE_LENGTH
    return length > THREAD_LENGTH
