"""Prompts that extend: sessions over real chat templates, each turn's prompt against the next one's
and against the engine's prefix cache.

The tokens are those of Qwen3's vocabulary, which stands in for each model's own, with the markers
that the templates have as special tokens.
"""

import json
import lzma
import os.path
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from tokenizers import Tokenizer

from node.engine.cache.config import CacheConfig
from node.engine.cache.parts import Tensors
from node.engine.cache.prefix_cache import PrefixCache
from node.errors import BadRequest
from node.parsing.selection import select_formats
from node.prompt.prompt import Prompt
from node.prompt.renderer import PromptRenderer
from node.prompt.template.chat import ChatRenderer
from node.prompt.template.chat_template import ChatTemplate
from node.request import Message, TemplateOptions, TextRequest, Tool, ToolCall
from tests.conformance.result import Result
from tests.node.prompt.template.samples import asking

MOST_SHOWN = 24
"""Characters of what is spelled anew."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "concepts" / "thinking.md"
VOCABULARY = Path("tokenizers") / "qwen3_tokenizer.json.xz"
_MARKER = re.compile(r"<[|｜][^<>'\"\s{}]+[|｜]>|</?[a-z_]+>|\[/?[A-Z_]{3,}\]")

WORD = re.compile(r"\w+")

SYSTEM = Message("system", "You answer what you are asked, in one line.")
_WORD = {"type": "string", "description": "What to look for."}
_SCHEMA = {"type": "object", "properties": {"word": _WORD}, "required": ["word"]}
FIND = Tool({"name": "find", "description": "Looks a word up.", "parameters": _SCHEMA})


@dataclass(frozen=True, slots=True)
class Mode:
    """The behaviour of the client in a session."""

    name: str
    thinking: bool
    returned: bool = False
    """True if reasoning is returned in the next request."""


RETURNED = Mode("on, given back", thinking=True, returned=True)
UNRETURNED = Mode("on, not given back", thinking=True)
MODES = (RETURNED, UNRETURNED, Mode("off", thinking=False))


@dataclass(slots=True)
class Findings:
    """The findings of one template's session in one mode."""

    lost: list[int] = field(default_factory=list)
    """For each turn but the last: tokens of its prompt that the next one's does not begin with."""
    tokens: int = 0
    """Tokens of the last prompt."""
    repeated: int = 0
    """Turns whose answer the cache gave back as well."""
    broken: list[str] = field(default_factory=list)
    """Turns of which the cache gave back less than the next prompt begins with."""
    anew: list[tuple[int, str]] = field(default_factory=list)
    """Turns whose prompt without its generation prompt, or whose answer without its reasoning, is
    spelled otherwise in the next one: tokens lost, and the text of these."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt of a session."""

    prompt: Prompt
    text: str
    end: int
    """Where the last message's text ends."""
    base: int
    """Where the generation prompt begins: the text up to there is what the template makes without
    one, or up to the last message's end if it makes another text then."""
    output: str
    """The text that the model generates, with its reasoning even if the client does not return
    that."""


def check_extension(corpus: Path) -> Result:
    """Plain sessions and those with tools, of every template: which extend, what is lost where they
    do not, and that the engine's cache gives all of the rest back. The sessions that do not are
    those of the tables in docs/concepts/thinking.md. The first prompt is the author's, but for the
    time."""
    folder = corpus / "chat_templates"
    if not (folder / "index.json").exists() or not (corpus / VOCABULARY).exists():
        return Result(skipped=f"{corpus} has no chat_templates or no {VOCABULARY}.")
    index = json.loads((folder / "index.json").read_text())
    texts = {each["file"]: (folder / each["file"]).read_text() for each in index}
    tokenizer = _tokenizer(corpus / VOCABULARY, texts.values())
    vocabulary = tokenizer.get_vocab()
    result, counts, rows, repeated = Result(), Counter[str](), [], 0
    for entry in index:
        name, specials = entry["file"].removesuffix(".jinja"), _specials(entry)
        subject = Subject(texts[entry["file"]], specials, tokenizer, vocabulary)
        as_it_is = _renderer(texts[entry["file"]], specials)
        for kind, session in SESSIONS.items():
            counts[f"{kind} before"] += extends_by_itself(as_it_is, kind)
            findings = {mode.name: subject.play(session(), kind, mode) for mode in MODES}
            result.total += len(findings)
            extends = not any(sum(each.lost) for each in findings.values())
            counts[kind] += extends
            counts[f"{kind} strictly"] += extends and not any(f.anew for f in findings.values())
            if not _contains_time(texts[entry["file"]]):
                result.failing += [
                    f"{name} {kind}, {mode.name}: another first prompt than the author's"
                    for mode in MODES
                    if _first(as_it_is, kind, mode) != subject.first(kind, mode)
                ]
            repeated += sum(each.repeated for each in findings.values())
            for mode, found in findings.items():
                result.passed += not found.broken
                result.failing += [f"{name} {kind}, {mode}: {line}" for line in found.broken]
                if any(found.lost):
                    rows.append(_row(name, kind, mode, findings))
            rows += _rows_anew(name, kind, findings) if extends else []
    listed = sorted(line for line in _documented() if line.startswith("| `"))
    result.failing += [f"not in {DOCUMENT.name}: {row}" for row in sorted({*rows} - {*listed})]
    result.failing += [f"only in {DOCUMENT.name}: {row}" for row in sorted({*listed} - {*rows})]
    result.notes.append(
        ", ".join(
            f"{counts[kind]} of {len(index)} {kind} extend ({counts[f'{kind} before']} as the "
            f"authors' programs spell them), {counts[f'{kind} strictly']} strictly"
            for kind in SESSIONS
        )
        + f"; {repeated} answers were reused too"
    )
    return result


def _row(name: str, kind: str, mode: str, findings: Mapping[str, Findings]) -> str:
    lost = ", ".join(str(each) for each in findings[mode].lost if each)
    is_of_reasoning = mode == RETURNED.name and not any(findings[UNRETURNED.name].lost)
    reason = "reasoning of a loop goes" if is_of_reasoning else "another text"
    return f"| `{name}` | {kind}, {mode} | {lost} | {findings[mode].tokens} | {reason} |"


def _rows_anew(name: str, kind: str, findings: Mapping[str, Findings]) -> list[str]:
    modes: dict[str, list[str]] = {}
    for mode, found in findings.items():
        if found.anew:
            text = found.anew[-1][1].replace("\n", "⏎").replace("|", "\\|")
            text = text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…"
            lost = sum(tokens for tokens, _ in found.anew)
            cells = f"{lost} | {len(found.anew)} of {len(found.lost)} | `{text}` |"
            modes.setdefault(cells, []).append(mode)
    rows = []
    for cells, those in modes.items():
        where = kind if len(those) == len(MODES) else f"{kind}, {'; '.join(those)}"
        rows.append(f"| `{name}` | {where} | {cells}")
    return rows


def _contains_time(text: str) -> bool:
    return re.search(r"strftime_now\([^)]*%H", text) is not None


def _first(chat: ChatRenderer, kind: str, mode: Mode) -> str:
    session = SESSIONS[kind]()
    request = request_of(session[: next(prompts_of(session))], kind, mode)
    return chat.apply(request, request.messages or (), generation=True)


def _documented() -> list[str]:
    """The lines of our section."""
    text = DOCUMENT.read_text() if DOCUMENT.exists() else ""
    return text.partition("## Prompts that extend")[2].partition("\n## ")[0].splitlines()


# --- sessions --------------------------------------------------------------------------------


def plain_session() -> list[Message]:
    """Four questions."""
    made = [SYSTEM]
    for number in ("first", "second", "third"):
        made.append(Message("user", _question(number)))
        made.append(_answer(number))
    return [*made, Message("user", _question("last"))]


def tool_session() -> list[Message]:
    """A loop with two calls at once, one with a call, and one more question."""
    return [
        SYSTEM,
        Message("user", _question("first")),
        *_calls("apple"),
        *_calls("plum", "cherry"),
        _answer("first"),
        Message("user", _question("second")),
        *_calls("walnut"),
        _answer("second"),
        Message("user", _question("last")),
    ]


SESSIONS: Mapping[str, Callable[[], list[Message]]] = {
    "plain": plain_session,
    "tools": tool_session,
}


def _calls(*words: str) -> list[Message]:
    calls = [ToolCall(f"call{word:x<5}"[:9], "find", json.dumps({"word": word})) for word in words]
    results = [
        Message("tool", _found(word), tool_call_id=call.call_id, name="find")
        for word, call in zip(words, calls, strict=True)
    ]
    return [Message("assistant", "", f"Look for {words[0]}.", tuple(calls)), *results]


def _question(number: str) -> str:
    return f"This is the {number} question of those that the people in the room wanted to ask."


def _answer(number: str) -> Message:
    return Message("assistant", f"I think that is the {number} answer.", f"The {number} thought.")


def _found(word: str) -> str:
    return f"There is something about {word} in the second book on the upper shelf behind the door."


def prompts_of(session: Sequence[Message]) -> Iterator[int]:
    """Yields the number of messages of each prompt of the session."""
    for count, message in enumerate(session, 1):
        following = session[count].role if count < len(session) else "assistant"
        if message.role in ("user", "tool") and following == "assistant":
            yield count


def request_of(messages: Sequence[Message], kind: str, mode: Mode) -> TextRequest:
    return asking(
        *(messages if mode.returned else (replace(each, reasoning="") for each in messages)),
        tools=(FIND,) if kind == "tools" else (),
        template=TemplateOptions(mode.thinking),
    )


def _renderer(text: str, specials: Mapping[str, str]) -> ChatRenderer:
    """Returns a renderer of the author's program as it is."""
    template = ChatTemplate(text, specials, normalize=False)
    return ChatRenderer(template, select_formats(text, ()).tool_calls)


def extends_by_itself(chat: ChatRenderer, kind: str) -> bool:
    """Returns True if the session extends in each mode."""
    session = SESSIONS[kind]()
    for mode in MODES:
        before, end = "", 0
        for count in prompts_of(session):
            request = request_of(session[:count], kind, mode)
            try:
                prompt = chat.apply(request, request.messages or (), generation=True)
            except BadRequest:
                return False
            if not prompt.startswith(before[:end]):
                return False
            before, end = prompt, _end_of(prompt, session[count - 1])
    return True


def _end_of(prompt: str, last: Message) -> int:
    """Where the last message's text ends: what is behind it is the generation prompt, which some
    templates write whether it is requested or not."""
    content = str(last.content)
    return prompt.rindex(content) + len(content)


def _contains(text: str, answer: Message, following: Message) -> bool:
    """Returns True if the answer's words are in their order at the begin of the text, before those
    of the message that follows it."""
    before, at = text.partition(str(following.content))[0], 0
    for word in (str(answer.content), *(WORD.findall(c.arguments)[-1] for c in answer.tool_calls)):
        at = before.find(word, at)
        if at < 0:
            return False
    return True


# --- one template ----------------------------------------------------------------------------


class Subject:
    """One template, with the tokenizer that stands in for its model's."""

    def __init__(
        self, text: str, specials: Mapping[str, str], tokenizer: Tokenizer, vocabulary: Any
    ) -> None:
        stand_in = SimpleNamespace(
            is_fast=True,
            backend_tokenizer=tokenizer,
            special_tokens_map=dict(specials),
            encode=lambda text, add_special_tokens: (
                tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
            ),
            get_vocab=lambda: vocabulary,
            get_chat_template=lambda tools: text,
        )
        library = SimpleNamespace(
            AutoTokenizer=SimpleNamespace(from_pretrained=lambda *_args, **_options: stand_in)
        )
        with mock.patch("node.prompt.renderer.import_transformers", lambda: library):
            self._renderer = PromptRenderer(Path())
        self._tokenizer = tokenizer
        template = ChatTemplate(text, specials)
        self._chat = ChatRenderer(template, select_formats(text, vocabulary).tool_calls)

    def first(self, kind: str, mode: Mode) -> str:
        """The session's first prompt."""
        return _first(self._chat, kind, mode)

    def play(self, session: Sequence[Message], kind: str, mode: Mode) -> Findings:
        """The session turn by turn, with a cache of its own."""
        found, cache = Findings(), _cache()
        before: tuple[int, Turn] | None = None
        for count in prompts_of(session):
            turn = self._turn(session, count, kind, mode)
            if before is not None:
                at, last = before
                self._compare(found, cache, last, turn)
                anew = self._spelled_anew(last, turn, *session[at : at + 2])
                found.anew += [anew] if anew else []
            before = count, turn
            if count < len(session):
                self._keep(cache, turn.prompt, self._ids(turn.output))
            found.tokens = len(turn.prompt.tokens)
        return found

    def _turn(self, session: Sequence[Message], count: int, kind: str, mode: Mode) -> Turn:
        request = request_of(session[:count], kind, mode)
        messages = request.messages or ()
        text = self._chat.apply(request, messages, generation=True)
        bare = self._chat.apply(request, messages, generation=False)
        end = _end_of(text, session[count - 1])
        output = ""
        if count < len(session):
            answer = session[count] if mode.thinking else replace(session[count], reasoning="")
            spelled = self._chat.apply(request, [*messages, answer], generation=False)
            output = spelled[len(text) :] if spelled.startswith(text) else str(answer.content)
        base = len(bare) if text.startswith(bare) else end
        return Turn(self._renderer.render(request), text, end, base, output)

    def _compare(self, found: Findings, cache: PrefixCache, before: Turn, turn: Turn) -> None:
        tokens = turn.prompt.tokens
        shared = len(os.path.commonprefix([before.prompt.tokens, tokens]))
        known = self._tokens_before(before.text, before.end)
        extends = turn.text.startswith(before.text[: before.end])
        found.lost.append(0 if extends else known - shared)
        hit = cache.match(np.array(tokens, np.int32), len(tokens) - 1).tokens
        if hit < min(known, shared):
            found.broken.append(f"{hit} tokens reused of {min(known, shared)}")
        found.repeated += hit > len(before.prompt.tokens)

    def _spelled_anew(
        self, before: Turn, turn: Turn, answer: Message, following: Message
    ) -> tuple[int, str] | None:
        """The tokens lost, and their text; None where the strict form holds."""
        if not turn.text.startswith(before.text[: before.base]):
            whole, end = before.text, before.base
        elif not _contains(turn.text[before.base :], answer, following):
            whole = before.text + before.output
            end = len(whole)
        else:
            return None
        offsets = self._tokenizer.encode(whole, add_special_tokens=False).offsets
        known = self._tokens_before(whole, end)
        shared = len(os.path.commonprefix([self._ids(whole), list(turn.prompt.tokens)]))
        return max(known - shared, 0), whole[offsets[shared][0] : end]

    def _tokens_before(self, text: str, end: int) -> int:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return sum(last <= end for _, last in encoding.offsets)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    @staticmethod
    def _keep(cache: PrefixCache, prompt: Prompt, output: Sequence[int]) -> None:
        """Stores a prompt and its answer as the engine does
        (`node.engine.scheduling.prefix_reuse`), when the prompt is prefilled and when the answer
        has ended."""
        whole = len(prompt.tokens)
        keepable = whole if prompt.reusable_tokens is None else prompt.reusable_tokens
        _store(cache, prompt.tokens[: min(keepable, whole - 1)])
        dropped = prompt.dropped_output
        is_dropped = bool(dropped) and tuple(output[: len(dropped)]) == dropped
        if prompt.reusable_tokens is None and not is_dropped:
            _store(cache, (*prompt.tokens, *output))


def _specials(entry: Mapping[str, str]) -> dict[str, str]:
    return {name: entry[name] for name in ("bos_token", "eos_token") if entry[name]}


def _tokenizer(path: Path, templates: Iterable[str]) -> Tokenizer:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        tokenizer = Tokenizer.from_str(file.read())
    markers = {marker for text in templates for marker in _MARKER.findall(text)}
    tokenizer.add_special_tokens(sorted(markers))
    return tokenizer


# --- the cache -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Span:
    """KV without content."""

    tokens: int

    @property
    def nbytes(self) -> int:
        return self.tokens

    def split(self, at_tokens: int) -> "tuple[_Span, _Span]":
        return _Span(at_tokens), _Span(self.tokens - at_tokens)

    def tensors(self) -> Tensors:
        return {}


def _cache() -> PrefixCache:
    config = CacheConfig(
        budget_bytes=2**30,
        snapshot_bytes=0,
        needs_snapshot=False,
        span_bytes_per_token=1,
        rebuild_span=lambda _tensors: _Span(0),
        rebuild_snapshot=lambda _tensors: _Span(0),
        prefill_s=lambda begin, end: float(end - begin),
    )
    return PrefixCache(config, None, lambda: 0.0)


def _store(cache: PrefixCache, tokens: Sequence[int]) -> None:
    if tokens:
        cache.store(
            np.array(tokens, np.int32), lambda begin, end: _Span(end - begin), None, "session"
        )
