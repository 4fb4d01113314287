"""Builds steps for the writers of OpenAI's dialects, and reads what they send."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai

from node.dialects.base import Collected, ResponseHead, Writer
from node.ipc.messages import Alternative, Delta, Part, PartKind, RowUsage, TokenLogprob
from node.protocol.messages import FinishReason

HEAD = ResponseHead("0123456789abcdef-r1", "alias", 99)
USAGE = RowUsage(7, 3, 5, 0.1, 0.2, 0.3, reasoning_tokens=2)


def content(text: str) -> Part:
    return Part(PartKind.CONTENT, text)


def reasoning(text: str) -> Part:
    return Part(PartKind.REASONING, text)


def call(index: int, name: str, *pieces: str) -> list[Part]:
    start = Part(PartKind.TOOL_START, "", index, name, f"call_{index}")
    return [start, *(Part(PartKind.TOOL_ARGS, piece, index) for piece in pieces)]


def last(finish: FinishReason = FinishReason.STOP, usage: RowUsage | None = USAGE) -> Delta:
    return Delta("r1", (), 5, finish, usage)


def end(choice: int, open_choices: int) -> Delta:
    """Returns the end of one of several choices."""
    usage = None if open_choices else USAGE
    stop = FinishReason.STOP
    return Delta("r1", (), 5, stop, usage, choice=choice, open_choices=open_choices)


def token(text: str, logprob: float, *top: tuple[str, float]) -> TokenLogprob:
    """Returns a token with these alternatives."""
    others = tuple(Alternative(each, each.encode(), value) for each, value in top)
    return TokenLogprob(Alternative(text, text.encode(), logprob), others)


def content_of(*tokens: TokenLogprob) -> Part:
    """Returns content with these tokens."""
    text = "".join(each.token.text for each in tokens)
    return Part(PartKind.CONTENT, text, logprobs=tokens)


def streamed(writer: Writer, parts: list[Part], ending: Delta | None = None) -> bytes:
    """Returns the bytes for each part by itself, followed by the end."""
    body = b"".join(writer.parts([part]) for part in parts)
    return body + writer.ending(ending or last())


def whole(writer: Writer, parts: list[Part], finish: FinishReason = FinishReason.STOP) -> Any:
    return whole_of(writer, [parts], finish)


def whole_of(
    writer: Writer, answers: list[list[Part]], finish: FinishReason = FinishReason.STOP
) -> Any:
    """Returns the JSON of several choices."""
    collected = [Collected(finish=finish, usage=USAGE) for _ in answers]
    for each, parts in zip(collected, answers, strict=True):
        each.add(parts)
    return json.loads(writer.whole(collected))


def chunks(body: bytes) -> list[Any]:
    """Returns the JSON of a stream that ended without an error."""
    events = body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


@contextmanager
def serving(
    body: bytes, content_type: str = "text/event-stream", requests: list[bytes] | None = None
) -> Iterator[str]:
    """Yields the address of a server that sends `body` for every request, and adds the requests to
    `requests`."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = self.rfile.read(int(self.headers.get("content-length", 0)))
            if requests is not None:
                requests.append(sent)
            self.send_response(200)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def with_client(body: bytes, use: Callable[[openai.OpenAI], Any]) -> Any:
    """Runs `use` with OpenAI's own client, for which every response is the stream `body`."""
    with serving(body) as url, openai.OpenAI(api_key="k", base_url=url, max_retries=0) as client:
        return use(client)
