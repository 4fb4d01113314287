"""From a request to token ids: the only caller of chat templates and tokenisers.

It runs in the agent process, with the transformers library and without MLX.
"""

import asyncio
import importlib
import logging
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import msgspec

from node.errors import BadRequest, LoadFailure
from node.openai import ChatMessage, TextRequest
from node.types import GenerateRequest, Loaded

THREAD_LENGTH = 16 * 1024
"""A prompt of more characters is rendered in a thread, so that it stalls no stream."""
MESSAGE_LENGTH = 32
"""What a message adds, in characters: a template takes its time for an empty one, too."""
RENDER_THREADS = 4


class Renderer(Protocol):
    """Makes token ids of a request's messages or prompt."""

    def render(self, request: TextRequest) -> tuple[int, ...]:
        """Raises `BadRequest` naming the field that cannot be rendered."""


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

    def render(self, request: TextRequest) -> tuple[int, ...]:
        if request.messages is not None:
            return self._chat(request.messages)
        if isinstance(request.prompt, tuple):
            return request.prompt
        tokens = tuple(self._tokenizer.encode(request.prompt))
        if not tokens:
            raise BadRequest("The prompt is empty.", param="prompt")
        return tokens

    def _chat(self, messages: tuple[ChatMessage, ...]) -> tuple[int, ...]:
        if not self._template:
            raise BadRequest(
                "The model has no chat template; use /v1/completions.", param="messages"
            )
        knows_developer = "developer" in self._template
        turns = [
            {
                "role": "system"
                if message.role == "developer" and not knows_developer
                else message.role,
                "content": message.content,
            }
            for message in messages
        ]
        try:
            text = self._tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True
            )
        # A template is a program of the model's author, and may raise whatever a program can.
        except Exception as exc:
            raise BadRequest(
                f"The model's chat template does not take these messages: {exc}", param="messages"
            ) from exc
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


class ScriptedRenderer:
    """Token ids without a tokeniser, for the scripted engine: one for each 4 characters."""

    def render(self, request: TextRequest) -> tuple[int, ...]:
        if isinstance(request.prompt, tuple):
            return request.prompt
        text = request.prompt or "".join(message.content for message in request.messages or ())
        data = text.encode("utf-32-le", "surrogatepass")
        return tuple(zlib.crc32(data[i : i + 16]) for i in range(0, len(data) or 1, 16))


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

    async def render(self, folder: Path, request: TextRequest) -> tuple[int, ...]:
        """The request's token ids, made in a thread for a long prompt. Raises `BadRequest` or
        `LoadFailure`."""
        renderer = await self.get(folder)
        if _length(request) <= THREAD_LENGTH:
            return renderer.render(request)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, renderer.render, request)


async def _load(folder: Path) -> Renderer:
    if folder == Path():
        return ScriptedRenderer()
    return await asyncio.to_thread(PromptRenderer, folder)


def generate_request(
    request: TextRequest, uid: str, tokens: tuple[int, ...], info: Loaded
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
    return GenerateRequest(uid, tokens, request.max_tokens, sampling, request.stops)


def _length(request: TextRequest) -> int:
    if request.messages is not None:
        return sum(len(message.content) + MESSAGE_LENGTH for message in request.messages)
    return len(request.prompt or "")
