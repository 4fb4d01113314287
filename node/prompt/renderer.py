"""Turns a request into token ids; the only module that calls chat templates and tokenizers.

It uses the transformers library, not MLX. A chat is rendered twice and tokenized once: as the
prompt, and as the text with which the next turn's prompt will begin. The second shows where
messages end and how much of the prompt the next turn can reuse.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from node.errors import BadRequest, LoadFailure
from node.parsing.selection import AUTO, NONE, Formats, select_formats
from node.prompt.prompt import Prompt, ids_prompt, text_prompt, within_context
from node.prompt.template.cache_boundaries import boundaries, find_chat_layout, reusable_tokens
from node.prompt.template.chat import ANSWER, Chat, ChatRenderer, returns_reasoning
from node.prompt.template.chat_template import ChatTemplate, import_transformers
from node.prompt.template.dropped import Encode, find_dropped, find_part_markers
from node.prompt.tokenize import PromptEncoder, TooManyTokens
from node.request import TextRequest


class _ModelChat:
    """One chat template of a model: makes its prompts, and knows the formats of its output."""

    def __init__(
        self,
        template: ChatTemplate,
        vocabulary: Collection[str],
        formats: Formats | None,
        encode: Encode,
    ) -> None:
        detected = select_formats(template.text, vocabulary)
        formats = formats or detected
        self.renderer = ChatRenderer(template, formats.tool_calls)
        abilities = self.renderer.abilities
        is_described = not (abilities.tools or abilities.example_call)
        if is_described and formats.tool_calls == detected.tool_calls != "hermes":
            # The model writes calls as the prompt shows it, or in a form of its own.
            formats = formats._replace(tool_calls=AUTO)
        self.formats = formats
        parts = find_part_markers(template.text, vocabulary)
        self._openings = tuple(part.opening for part in parts if part.is_reasoning)
        reads_reasoning = self.formats.reasoning != NONE
        self._dropped = find_dropped(self.renderer, parts, encode, reads_reasoning=reads_reasoning)

    def dropped(self, request: TextRequest) -> tuple[int, ...]:
        """Returns the first tokens of responses that the next turn's prompt does not repeat."""
        if not returns_reasoning(request.messages or ()):
            return self._dropped.unreturned
        return self._dropped.at_result if self._awaits_call(request) else self._dropped.at_user

    def is_repeated(self, request: TextRequest, chat: Chat) -> bool:
        """True if the next turn's prompt continues with the response to this one."""
        if chat.following is None or chat.shared < len(chat.text):
            return False
        if self._awaits_call(request) and not request.continue_final:
            return True
        return chat.following.text.startswith((ANSWER, *self._openings), chat.shared)

    def _awaits_call(self, request: TextRequest) -> bool:
        return bool(request.tools) and self.renderer.abilities.calls


def load_tokenizer(folder: Path) -> Any:
    """Loads a tokenizer of the transformers library. Slow. Raises `LoadFailure` with a sentence."""
    transformers = import_transformers()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        # The first call sets truncation and padding; after it, threads may share the tokenizer.
        tokenizer.encode("a", add_special_tokens=False)
    except Exception as exc:
        raise LoadFailure(f"The tokenizer of {folder.name} cannot be loaded: {exc}") from exc
    return tokenizer


class PromptRenderer:
    """The tokenizer and the chat templates of one model folder."""

    def __init__(
        self,
        folder: Path,
        formats: Formats | None = None,
        *,
        normalize: bool = True,
        tokenizer: Any = None,
    ) -> None:
        """`formats`: formats of the model's output; None for those found from template and
        vocabulary. `normalize` as in `ChatTemplate`. `tokenizer`: the folder's own, if already
        loaded. Slow. Raises `LoadFailure` with a sentence."""
        self._normalize = normalize
        self._tokenizer: Any = tokenizer or load_tokenizer(folder)
        self._encoder: PromptEncoder | None = None
        if self._tokenizer.is_fast:
            self._encoder = PromptEncoder(self._tokenizer.backend_tokenizer)
        self._chats = self._load_chats(formats)

    @property
    def formats(self) -> Formats:
        with_tools = self._chats.get(True)
        return Formats() if with_tools is None else with_tools.formats

    def render(self, request: TextRequest, context_tokens: int | None = None) -> Prompt:
        make = self._completion if request.messages is None else self._chat_prompt
        return within_context(make, request, context_tokens)

    def render_shared(self, request: TextRequest, context_tokens: int | None = None) -> Prompt:
        make = self._completion if request.messages is None else self._shared_prompt
        return within_context(make, request, context_tokens)

    def _chat_prompt(self, request: TextRequest, most_tokens: int | None) -> Prompt:
        model = self._chat(request)
        text = model.renderer.text(request)
        # Before anything else is made from the text, which takes as long for a prompt that is too
        # long.
        encoded = None if self._encoder is None else self._encoder.encode(text, most_tokens)
        chat = model.renderer.chat(request, text)
        if encoded is None:
            return Prompt(self._encode(text), formats=model.formats, tail=chat.tail)
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
            find_chat_layout(request, chat, encoded),
        )

    def _shared_prompt(self, request: TextRequest, most_tokens: int | None) -> Prompt:
        renderer, messages = self._chat(request).renderer, request.messages or ()
        following = renderer.render_shared(request)
        if self._encoder is None or following is None or not following.ends:
            # Requests that continue otherwise do not share the generation prompt.
            return Prompt(self._encode(renderer.apply(request, messages, generation=False)))
        encoded = self._encoder.encode(following.text[: following.ends[-1]], most_tokens)
        return Prompt(tuple(encoded.ids), boundaries(encoded, following, len(encoded.text)))

    def _load_chats(self, formats: Formats | None) -> dict[bool, _ModelChat]:
        """Returns the chats by whether a request has tools; empty without a template."""
        vocabulary = self._tokenizer.get_vocab()
        by_text: dict[str, _ModelChat] = {}
        chats = {}
        for has_tools in (False, True):
            try:
                # Some models have a separate template for requests with tools.
                text = str(self._tokenizer.get_chat_template(tools=[{}] if has_tools else None))
            except ValueError:
                continue
            if text not in by_text:
                template = ChatTemplate(
                    text, self._tokenizer.special_tokens_map, normalize=self._normalize
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

    def _completion(self, request: TextRequest, most_tokens: int | None) -> Prompt:
        if isinstance(request.prompt, tuple):
            return ids_prompt(request.prompt)
        if self._encoder is None:
            return text_prompt(tuple(self._tokenizer.encode(request.prompt)))
        before, after = self._encoder.around
        around = len(before) + len(after)
        most_tokens = None if most_tokens is None else most_tokens - around
        try:
            encoded = self._encoder.encode(request.prompt or "", most_tokens)
        except TooManyTokens as exc:
            raise TooManyTokens(exc.tokens + around) from None
        tokens = (*before, *encoded.ids, *after)
        return text_prompt(
            tokens, encoded.text, lambda length: len(before) + encoded.tokens_within(length)
        )

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))
