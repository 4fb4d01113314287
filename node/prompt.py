"""From a request to token ids: the only caller of chat templates and tokenisers.

It runs in the agent process, with the transformers library and without MLX. A chat is rendered
twice, and tokenised once: as the prompt, and as the text that the next turn's prompt will begin
with, which tells where messages end and what of the prompt the next turn can reuse.
"""

import asyncio
import importlib
import logging
import re
import zlib
from bisect import bisect_left
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from node.encoder import Encoded, PromptEncoder, common_length
from node.errors import BadRequest, LoadFailure
from node.openai import ChatMessage, TextRequest
from node.types import GenerateRequest, Loaded

THREAD_LENGTH = 16 * 1024
"""A prompt of more characters is rendered in a thread, so that it stalls no stream."""
MESSAGE_LENGTH = 32
"""What a message adds, in characters: a template takes its time for an empty one, too."""
RENDER_THREADS = 4


ANSWER = "x"
"""Stands for the answer in the next turn."""
MARKERS = [chr(number) for number in range(0xE000, 0xE100)]
"""For private use; no text is likely to have them all."""
HEADER_TOKENS = 8
"""A cut so near behind a special token is put right behind that."""
_CLOSING = re.compile(r"([<\[◁])/([\w:.-]+)([>\]▷])")
"""What closes a part of an answer; without the slash, what opens it."""

Turns = Sequence[dict[str, str]]
_DUMMY = {"role": "user", "content": "y"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered request; the fields as in `GenerateRequest`."""

    tokens: tuple[int, ...]
    boundaries: tuple[int, ...] = ()
    reusable_tokens: int | None = None
    dropped_answer: tuple[int, ...] = ()


class Renderer(Protocol):
    """Makes token ids of a request's messages or prompt."""

    def render(self, request: TextRequest) -> Prompt:
        """Raises `BadRequest` naming the field that cannot be rendered."""

    def render_shared(self, request: TextRequest) -> Prompt:
        """What the prompts of all requests begin with that begin with the same messages. Raises
        as `render`."""


class PromptRenderer:
    """The tokeniser and the chat template of one model folder."""

    def __init__(self, folder: Path) -> None:
        """Slow: to be called in a thread. Raises `LoadFailure` with a sentence."""
        transformers = _transformers()
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
            # The first call settles truncation and padding, after which threads may share it.
            self._tokenizer.encode("a", add_special_tokens=False)
        except Exception as exc:
            raise LoadFailure(f"The tokeniser of {folder.name} cannot be loaded: {exc}") from exc
        try:
            self._template = str(self._tokenizer.get_chat_template())
        except ValueError:
            self._template = ""
        self._encoder: PromptEncoder | None = None
        if self._tokenizer.is_fast:
            self._encoder = PromptEncoder(self._tokenizer.backend_tokenizer)
        self._dropped_answer = self._find_dropped() if self._template else ()

    def render(self, request: TextRequest) -> Prompt:
        if request.messages is None:
            return self._completion(request)
        turns = self._turns(request.messages)
        text = self._apply(turns, generation=True)
        if self._encoder is None:
            return Prompt(self._encode(text))
        encoded = self._encoder.encode(text)
        tokens = tuple(encoded.ids)
        following = self._next_turn(turns, answered=turns[-1]["role"] != "assistant")
        if following is None:
            return Prompt(tokens)
        shared = common_length(text, following.text)
        return Prompt(
            tokens,
            _boundaries(encoded, following, shared),
            _reusable(encoded, following, shared),
            self._dropped_answer,
        )

    def render_shared(self, request: TextRequest) -> Prompt:
        if request.messages is None:
            return self._completion(request)
        turns = self._turns(request.messages)
        # After a system message alone, many templates want a user.
        following = self._next_turn(turns, answered=turns[-1]["role"] == "user")
        if self._encoder is None or following is None or not following.ends:
            # The generation prompt is not shared with requests that go on otherwise.
            return Prompt(self._encode(self._apply(turns, generation=False)))
        encoded = self._encoder.encode(following.text[: following.ends[-1]])
        return Prompt(tuple(encoded.ids), _boundaries(encoded, following, len(encoded.text)))

    def _completion(self, request: TextRequest) -> Prompt:
        if isinstance(request.prompt, tuple):
            return Prompt(request.prompt)
        tokens = tuple(self._tokenizer.encode(request.prompt))
        if not tokens:
            raise BadRequest("The prompt is empty.", param="prompt")
        return Prompt(tokens)

    def _turns(self, messages: tuple[ChatMessage, ...]) -> Turns:
        if not self._template:
            raise BadRequest(
                "The model has no chat template; use /v1/completions.", param="messages"
            )
        knows_developer = "developer" in self._template
        return [
            {
                "role": "system"
                if message.role == "developer" and not knows_developer
                else message.role,
                "content": message.content,
            }
            for message in messages
        ]

    def _apply(self, turns: Turns, *, generation: bool) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=generation
            )
        # A template is a program of the model's author, and may raise whatever a program can.
        except Exception as exc:
            raise BadRequest(
                f"The model's chat template does not take these messages: {exc}", param="messages"
            ) from exc
        return text

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _find_dropped(self) -> tuple[int, ...]:
        """How an answer begins of which the template drops a part, such as the reasoning, once
        another message follows; empty if it drops none."""
        pairs = _parts_of_answers(self._template, self._tokenizer.get_vocab())
        try:
            begin = self._apply([_DUMMY], generation=True)
            if self._repeats(begin, ANSWER):
                for opening, closing in pairs:
                    if not self._repeats(begin, f"{opening}\nr\n{closing}\n\n{ANSWER}"):
                        return self._first_tokens(begin, opening)
        except BadRequest:
            # One that takes no such turns has no next turn to reuse anything.
            return ()
        return ()

    def _repeats(self, begin: str, answer: str) -> bool:
        """Whether the next turn's prompt begins with this one and the answer. Raises
        `BadRequest`."""
        turns = [_DUMMY, {"role": "assistant", "content": answer}, _DUMMY]
        return self._apply(turns, generation=False).startswith(begin + answer)

    def _first_tokens(self, begin: str, opening: str) -> tuple[int, ...]:
        """Those that answers have in common that begin with `opening`, of which some tokenisers
        merge the end with the text that follows."""
        length = len(self._encode(begin))
        afters = ("", "\n", "\n\n", " ", "x")
        answers = [self._encode(begin + opening + after)[length:] for after in afters]
        columns = list(zip(*answers, strict=False))
        count = next((at for at, ids in enumerate(columns) if len(set(ids)) > 1), len(columns))
        return answers[0][:count]

    def _next_turn(self, turns: Turns, *, answered: bool) -> "_NextTurn | None":
        """The turns with an answer, if they get one, and another message of the user. None where
        the template does not take that, or there is no marker for it."""
        contents = [turn["content"] for turn in turns]
        free = (mark for mark in MARKERS if not any(mark in content for content in contents))
        marker = next(free, None)
        if marker is None:
            return None
        dummies = [_DUMMY]
        if answered:
            dummies.insert(0, {"role": "assistant", "content": ANSWER})
        try:
            text = self._apply([*_marked(turns, marker), *dummies], generation=False)
        except BadRequest:
            return None
        pieces = text.split(marker)
        ends, length = [], 0
        for piece in pieces[:-1]:
            length += len(piece)
            ends.append(length)
        return _NextTurn("".join(pieces), tuple(ends))


class _NextTurn(NamedTuple):
    """What the next turn's prompt will look like."""

    text: str
    ends: tuple[int, ...]
    """Ascending: the positions in the text at which messages of this turn end."""


def _parts_of_answers(template: str, vocabulary: Collection[str]) -> list[tuple[str, str]]:
    """What opens and closes parts of answers, as far as the template or the vocabulary tell."""
    names = [match.groups() for match in _CLOSING.finditer(template)]
    if "<think>" in vocabulary or "<think>" in template:
        names.append(("<", "think", ">"))
    # Reasoning first: it is what answers begin with.
    ordered = sorted(dict.fromkeys(names), key=lambda name: "think" not in name[1].lower())
    return [(f"{left}{name}{right}", f"{left}/{name}{right}") for left, name, right in ordered]


def _marked(turns: Turns, marker: str) -> Turns:
    """The turns with the marker behind each content; before the space at its end, which a
    template may strip. One without text stays as it is, for templates that ask whether it has."""
    marked = []
    for turn in turns:
        content = turn["content"]
        body = content.rstrip()
        if body:
            turn = {**turn, "content": body + marker + content[len(body) :]}
        marked.append(turn)
    return marked


def _boundaries(encoded: Encoded, following: _NextTurn, shared: int) -> tuple[int, ...]:
    counts = {encoded.tokens_within(end) for end in following.ends if end <= shared}
    return tuple(sorted(counts - {0, len(encoded.ids)}))


def _reusable(encoded: Encoded, following: _NextTurn, shared: int) -> int | None:
    """How many tokens the `shared` characters at the begin of both texts are good for."""
    whole = len(encoded.text)
    if shared == whole:
        return None if following.text.startswith(ANSWER, whole) else len(encoded.ids)
    count = encoded.tokens_within(shared)
    # What follows is other text, with which the last tokens may merge, but never a special one.
    parted = bisect_left(encoded.specials, count)
    if parted and count - encoded.specials[parted - 1] - 1 <= HEADER_TOKENS:
        return encoded.specials[parted - 1] + 1
    return count


class ScriptedRenderer:
    """Token ids without a tokeniser, for the scripted engine: one for each 4 characters."""

    def render(self, request: TextRequest) -> Prompt:
        if isinstance(request.prompt, tuple):
            return Prompt(request.prompt)
        text = request.prompt or "".join(message.content for message in request.messages or ())
        data = text.encode("utf-32-le", "surrogatepass")
        return Prompt(tuple(zlib.crc32(data[i : i + 16]) for i in range(0, len(data) or 1, 16)))

    def render_shared(self, request: TextRequest) -> Prompt:
        return self.render(request)


def _transformers() -> Any:
    # The library takes a second to import, and the scripted engine does without it. Its import
    # sets the level of its logger and tells that there is no PyTorch, which is as it should be.
    logger = logging.getLogger("transformers")
    logger.addFilter(_is_error)
    transformers = importlib.import_module("transformers")
    logger.removeFilter(_is_error)
    logger.setLevel(logging.ERROR)
    return transformers


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


class Renderers:
    """One renderer for each model folder, loaded once however many wait; and the threads that
    render, which nothing else shares, so that nothing else waits for a long prompt."""

    def __init__(self) -> None:
        self._loads: dict[Path, asyncio.Future[Renderer]] = {}
        self._threads = ThreadPoolExecutor(RENDER_THREADS, thread_name_prefix="render")

    def close(self) -> None:
        """Renders no more; what runs is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def begin(self, folder: Path) -> asyncio.Future[Renderer]:
        """Starts the load of the folder's renderer, unless it is loaded or being loaded."""
        load = self._loads.get(folder)
        if load is None or (load.done() and (load.cancelled() or load.exception() is not None)):
            load = self._loads[folder] = asyncio.ensure_future(_load(folder))
        return load

    async def get(self, folder: Path) -> Renderer:
        """The folder's renderer; a scripted one for the empty path. Raises `LoadFailure`."""
        load = self.begin(folder)
        if not load.done():
            # Unlike an await of the load, its end of waiting does not cancel it for the others.
            await asyncio.wait({load})
        return load.result()

    async def render(self, folder: Path, request: TextRequest, *, shared: bool = False) -> Prompt:
        """The request's prompt, or what it shares with later ones; made in a thread if it is
        long. Raises `BadRequest` or `LoadFailure`."""
        renderer = await self.get(folder)
        render = renderer.render_shared if shared else renderer.render
        if _length(request) <= THREAD_LENGTH:
            return render(request)
        return await asyncio.get_running_loop().run_in_executor(self._threads, render, request)


async def _load(folder: Path) -> Renderer:
    if folder == Path():
        return ScriptedRenderer()
    return await asyncio.to_thread(PromptRenderer, folder)


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
    )


def _length(request: TextRequest) -> int:
    if request.messages is not None:
        return sum(len(message.content) + MESSAGE_LENGTH for message in request.messages)
    return len(request.prompt or "")
