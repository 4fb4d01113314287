"""Translates responses of OpenAI's dialect into Ollama's, for a client of Ollama whose request went
to a third-party server."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from node.protocol.ollama.json_lines import spelled
from node.protocol.paths import PATH_OLLAMA_CHAT
from router.client import sse
from router.types import Tokens

MAX_HELD_BYTES = 16 * 1024 * 1024
"""Most bytes of an event that is not complete, and of all calls, that are held back."""
_CALL_BYTES = 200
"""Memory of a piece of a call besides its text."""
_BREAK = re.compile(rb"\r?\n\r?\n")
_DATA = re.compile(rb"^data:[ ]?(.*)$", re.MULTILINE)
_DONE = b"[DONE]"
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NOTHING: Mapping[str, Any] = {}


class _FunctionPiece(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _CallPiece(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _FunctionPiece | None = None


class _Logprobs(msgspec.Struct):
    content: list[msgspec.Raw] | None = None


class _Text(msgspec.Struct):
    """A delta of a stream, or a whole message."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_CallPiece] | None = None


class _ServedChoice(msgspec.Struct):
    delta: _Text | None = None
    message: _Text | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Response(msgspec.Struct):
    choices: list[_ServedChoice] | None = None
    error: Any = None


@dataclass(slots=True)
class _OpenCall:
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)


_decode = msgspec.json.Decoder(_Response).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class TooMuchHeld(OSError):
    """The server sends an event or calls that are longer than the router holds back."""


class LineTranslator:
    """Translates one response."""

    def __init__(
        self,
        path: str,
        model: str,
        *,
        hides_thinking: bool,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`model` is the name that the client's request has."""
        self._is_chat = path == PATH_OLLAMA_CHAT
        self._model = model
        self._hides_thinking = hides_thinking
        self._clock_ns = clock_ns
        self._begun_ns = clock_ns()
        self._first_ns = 0
        """Time of the first content; 0 before it."""
        self._rest = b""
        """The beginning of an event whose rest has not arrived."""
        self._calls: dict[int, _OpenCall] = {}
        self._held_bytes = 0
        """Bytes of all calls so far."""
        self._finish = ""
        self._is_over = False

    def lines(self, events: bytes, tokens: Tokens | None) -> bytes:
        """Returns the lines for the events that follow; `tokens` are the counts so far. Raises
        `TooMuchHeld`."""
        pieces = []
        *whole, self._rest = _BREAK.split(self._rest + events)
        for event in whole:
            data = b"".join(_DATA.findall(event)).strip()
            if data and not self._is_over:
                pieces.append(self._ending(tokens) if data == _DONE else self._line(data))
        if max(len(self._rest), self._held_bytes) > MAX_HELD_BYTES:
            raise TooMuchHeld
        return b"".join(pieces)

    def end(self, tokens: Tokens | None) -> bytes:
        """Returns the last line of a stream that has ended without `[DONE]`; empty if it has had
        its last line, or was cut off."""
        if self._is_over:
            return b""
        if self._first_ns == 0 and self._rest.lstrip().startswith(b"{"):
            return self.whole(self._rest, tokens) + b"\n"  # the server does not stream
        return self._ending(tokens) if self._finish else b""

    def whole(self, body: bytes, tokens: Tokens | None) -> bytes:
        """Returns a whole response; one that is no chat's or completion's as it is."""
        try:
            choice = (_decode(body).choices or [])[0]
        except (*_BROKEN, IndexError):
            return body
        self._first_ns = self._clock_ns()
        text = choice.message or _Text(choice.text)
        self._collect(text)
        self._finish = choice.finish_reason or "stop"
        more = self._more(text) | self._take_calls()
        fields = {**self._text(text.content or "", more), **_logprobs(choice)}
        return self._encoded({**fields, **self._summary(tokens)})

    def _line(self, data: bytes) -> bytes:
        """Returns the lines for the data of one event."""
        try:
            decoded = _decode(data)
        except _BROKEN:
            return b""
        if decoded.error:
            self._is_over = True
            return _encode({"error": sse.error_message(data) or "The server failed."}) + b"\n"
        if not decoded.choices:
            return b""
        choice = decoded.choices[0]
        text = choice.delta or _Text(choice.text)
        self._collect(text)
        self._finish = choice.finish_reason or self._finish
        more = self._more(text)
        if not more and not text.content:
            return b""
        self._first_ns = self._first_ns or self._clock_ns()
        fields = self._text(text.content or "", more)
        return self._encoded({**fields, **_logprobs(choice), "done": False}) + b"\n"

    def _ending(self, tokens: Tokens | None) -> bytes:
        self._is_over = True
        pieces = []
        if self._calls:
            pieces.append(self._encoded({**self._text("", self._take_calls()), "done": False}))
        pieces.append(self._encoded({**self._text(""), **self._summary(tokens)}))
        return b"".join(piece + b"\n" for piece in pieces)

    def _more(self, text: _Text) -> dict[str, Any]:
        thinking = text.reasoning_content or text.reasoning
        return {"thinking": thinking} if thinking and not self._hides_thinking else {}

    def _collect(self, text: _Text) -> None:
        """Adds the pieces of calls, which are sent once they are complete."""
        for at, given in enumerate(text.tool_calls or ()):
            self._held_bytes += _CALL_BYTES
            call = self._calls.setdefault(given.index or at, _OpenCall())
            call.call_id = given.id or call.call_id
            if given.function is not None:
                call.name = given.function.name or call.name
                call.pieces.append(given.function.arguments or "")
                self._held_bytes += len(call.pieces[-1])

    def _take_calls(self) -> dict[str, Any]:
        """Returns the calls whose arguments are complete."""
        found, self._calls = list(self._calls.values()), {}
        made = []
        for index, call in enumerate(found):
            try:
                arguments = _decode_any("".join(call.pieces) or "{}")
            except _BROKEN:
                continue
            shown = arguments if isinstance(arguments, dict) else {"arguments": arguments}
            function = {"index": index, "name": call.name, "arguments": shown}
            made.append({"id": call.call_id, "function": function})
        return {"tool_calls": made} if made else {}

    def _text(self, text: str, more: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
        if self._is_chat:
            return {"message": {"role": "assistant", "content": text, **more}}
        return {"response": text, **more}

    def _summary(self, tokens: Tokens | None) -> dict[str, Any]:
        """Returns the members of the last line, with times as the router has seen them."""
        now_ns = self._clock_ns()
        first_ns = self._first_ns or now_ns
        counts = tokens or Tokens(0, 0, 0)
        return {
            "done": True,
            "done_reason": "length" if self._finish == "length" else "stop",
            "total_duration": now_ns - self._begun_ns,
            "load_duration": 0,
            "prompt_eval_count": counts.prompt,
            "prompt_eval_duration": first_ns - self._begun_ns,
            "eval_count": counts.completion,
            "eval_duration": now_ns - first_ns,
        }

    def _encoded(self, fields: Mapping[str, Any]) -> bytes:
        at = spelled(datetime.now(UTC))
        return _encode({"model": self._model, "created_at": at, **fields})


def _logprobs(choice: _ServedChoice) -> dict[str, Any]:
    found = choice.logprobs.content if choice.logprobs else None
    return {"logprobs": found} if found else {}
