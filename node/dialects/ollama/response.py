"""Serializes the responses of Ollama's chat and generate: JSON lines, or one object."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from node.dialects.base import Collected, ResponseHead
from node.dialects.fields.logprobs import alternative
from node.errors import BrokenCall, EngineFault, NodeError
from node.ipc.messages import Accepted, Delta, Part, PartKind, RowUsage, TokenLogprob
from node.protocol.error_envelopes import ollama_envelope
from node.protocol.errors import BROKEN_CALL
from node.protocol.messages import FinishReason
from node.protocol.ollama.json_lines import CONTENT_TYPE, FILLER, spelled

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_CONTENT, _REASONING, _TOOL_START = PartKind.CONTENT, PartKind.REASONING, PartKind.TOOL_START
_NOTHING: Mapping[str, Any] = {}


class LineWriter:
    """Writes what both responses share. Clients get a call when it is complete, since its arguments
    are an object."""

    keep_alive = FILLER
    content_type = CONTENT_TYPE

    def __init__(
        self,
        head: ResponseHead,
        *,
        hides_thinking: bool = False,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._clock_ns = clock_ns
        self._begun_ns = self._accepted_ns = clock_ns()
        self._start = _encode({"model": head.model})[:-1] + b',"created_at":"'
        self._hides_thinking = hides_thinking
        self._calls = 0
        self._open_call: Part | None = None
        self._arguments: list[str] = []
        self._cut_off = ""
        """Name of a call that has ended before its arguments were complete."""

    def accepted(self, accepted: Accepted) -> None:
        """Notes that the model is loaded."""
        self._accepted_ns = self._clock_ns()

    def parts(self, parts: Sequence[Part], choice: int = 0) -> bytes:
        """Implements `Writer.parts`; empty while a call is not complete, and for hidden
        thinking."""
        pieces: list[bytes] = []
        for part in parts:
            if part.kind is PartKind.TOOL_ARGS:
                self._arguments.append(part.text)
                continue
            pieces.append(self._end_call())
            if part.kind is _TOOL_START:
                self._open_call = part
            elif part.kind is _CONTENT:
                pieces.append(self._line(self.text(part.text), part.logprobs))
            elif not self._hides_thinking:
                pieces.append(self._line(self.text("", {"thinking": part.text})))
        return b"".join(pieces)

    def ending(self, last: Delta) -> bytes:
        rest, finish = self._end_call(), last.finish or FinishReason.STOP
        if self._cut_off and finish is FinishReason.STOP and last.stop is None:
            return rest + self.error(_broken(self._cut_off))
        return rest + self._line(self.text(""), (), self._summary(finish, last.usage))

    def error(self, error: NodeError) -> bytes:
        return ollama_envelope(error) + b"\n"

    def whole(self, outputs: Sequence[Collected]) -> bytes:
        """Implements `Writer.whole`. Raises `EngineFault` if the engine reported no usage, and
        `BrokenCall` if the model ended within a call, which could not be shown."""
        (output,) = outputs
        if output.usage is None:
            raise EngineFault("The engine ended the request without reporting its usage.")
        calls = [call for call in output.calls if call.is_whole_call]
        cut_off = [call.name for call in output.calls if not call.is_whole_call]
        if cut_off and output.finish is FinishReason.STOP and output.stop is None:
            raise _broken(cut_off[0])
        more: dict[str, Any] = {}
        thinking = output.text(_REASONING)
        if thinking and not self._hides_thinking:
            more["thinking"] = thinking
        if calls:
            more["tool_calls"] = [
                _call(at, call.name, call.call_id, call.text) for at, call in enumerate(calls)
            ]
        fields = self.text(output.text(_CONTENT), more)
        return self._line(fields, output.logprobs, self._summary(output.finish, output.usage))[:-1]

    def text(self, text: str, more: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
        """Returns the members of a line with this text; `more` are thinking or calls."""
        raise NotImplementedError

    def _end_call(self) -> bytes:
        """Returns the line of the call that is open; empty without one, or if it was cut off."""
        call, self._open_call = self._open_call, None
        if call is None:
            return b""
        arguments = "".join(self._arguments)
        self._arguments.clear()
        try:
            shown = _call(self._calls, call.name, call.call_id, arguments)
        except msgspec.DecodeError:
            self._cut_off = call.name
            return b""
        self._calls += 1
        return self._line(self.text("", {"tool_calls": [shown]}))

    def _line(
        self,
        fields: dict[str, Any],
        logprobs: Sequence[TokenLogprob] = (),
        ending: Mapping[str, Any] | None = None,
    ) -> bytes:
        if logprobs:
            fields["logprobs"] = [
                {**alternative(each.token), "top_logprobs": [*map(alternative, each.top)]}
                for each in logprobs
            ]
        fields["done"] = ending is not None
        if ending is not None:
            fields.update(ending)
        return b'%b%b",%b\n' % (
            self._start,
            spelled(datetime.now(UTC)).encode(),
            _encode(fields)[1:],
        )

    def _summary(self, finish: FinishReason, usage: RowUsage | None) -> Mapping[str, Any]:
        """Returns the members of a last line; a response that was cancelled may lack its usage."""
        reason = {"done_reason": finish.value}
        if usage is None:
            return reason
        return {
            **reason,
            "total_duration": self._clock_ns() - self._begun_ns,
            "load_duration": self._accepted_ns - self._begun_ns,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": round(usage.prefill_s * 1e9),
            "eval_count": usage.completion_tokens,
            "eval_duration": round(usage.decode_s * 1e9),
        }


class ChatLines(LineWriter):
    """Writes the response of `/api/chat`."""

    def text(self, text: str, more: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, **more}}


class GenerateLines(LineWriter):
    """Writes the response of `/api/generate`."""

    def text(self, text: str, more: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
        return {"response": text, **more}


def _broken(name: str) -> BrokenCall:
    """Returns the error for a call whose arguments have no end."""
    return BrokenCall(f"{BROKEN_CALL}{name}: its arguments have no end.")


def _call(index: int, name: str, call_id: str, arguments: str) -> dict[str, Any]:
    """Returns a call. Raises `msgspec.DecodeError` if its arguments are cut off."""
    read = _decode(arguments or "{}")
    shown = read if isinstance(read, dict) else {"arguments": read}
    return {"id": call_id, "function": {"index": index, "name": name, "arguments": shown}}
