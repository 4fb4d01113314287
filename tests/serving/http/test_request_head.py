"""Heads that are refused, by bytes on a real socket."""

from __future__ import annotations

import json

import pytest

from serving.http.client_connection import MAX_HEAD_BYTES, MAX_HEADERS
from tests.serving.http.connections import echo, serving

GET = b"GET /x HTTP/1.1\r\n"
POST = b"POST /x HTTP/1.1\r\nhost: here\r\n"
HOST = b"host: here\r\n"
END = b"\r\n"
NO_BODY = b"\r\n0\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"

REFUSED = [
    ("no host", GET + END, 400),
    ("two hosts", GET + HOST + b"host: there\r\n" + END, 400),
    ("the same host twice", GET + HOST + HOST + END, 400),
    ("two hosts of an old client", b"GET /x HTTP/1.0\r\n" + HOST + HOST + END, 400),
    ("two hosts in one", GET + b"host: here, there\r\n" + END, 400),
    ("a path for a host", GET + b"host: here/x\r\n" + END, 400),
    ("a user in the host", GET + b"host: localhost:80@evil.com\r\n" + END, 400),
    ("a CONNECT request", b"CONNECT here:443 HTTP/1.1\r\n" + HOST + END, 501),
    ("a CONNECT request to a path", b"CONNECT /x HTTP/1.1\r\n" + HOST + END, 501),
    ("an address without a host", b"GET http:// HTTP/1.1\r\n" + HOST + END, 400),
    ("no request", b"nonsense\r\n\r\n", 400),
    ("bytes that are no text", b"GET \xff HTTP/1.1\r\n" + HOST + END, 400),
    ("HTTP/2.0", b"GET /x HTTP/2.0\r\n" + HOST + END, 505),
    ("HTTP/2 without asking", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ("HTTP/1.2", b"GET /x HTTP/1.2\r\n" + HOST + END, 505),
    ("HTTP/10.0", b"GET /x HTTP/10.0\r\n" + HOST + END, 505),
    ("HTTP/0.9", b"GET /x\r\n\r\n", 505),
    ("gzip in chunks", POST + b"transfer-encoding: gzip, chunked\r\n" + NO_BODY, 501),
    ("gzip in a line", POST + b"transfer-encoding: gzip\r\n" + CHUNKED + NO_BODY, 501),
    ("gzip alone", POST + b"transfer-encoding: gzip\r\n" + END, 501),
    ("chunks within gzip", POST + b"transfer-encoding: chunked, gzip\r\n" + END, 400),
    ("chunks of chunks", POST + CHUNKED + CHUNKED + NO_BODY, 400),
    ("chunks of an old client", b"POST /x HTTP/1.0\r\n" + CHUNKED + NO_BODY, 400),
    ("length and chunks", POST + b"content-length: 3\r\n" + CHUNKED + NO_BODY, 400),
    ("chunks and length", POST + CHUNKED + b"content-length: 3\r\n" + NO_BODY, 400),
    ("two lengths", POST + b"content-length: 1\r\ncontent-length: 2\r\n" + END + b"ab", 400),
    ("two lengths in one", POST + b"content-length: 1, 1\r\n" + END + b"a", 400),
    ("a length with a sign", POST + b"content-length: +1\r\n" + END + b"a", 400),
    ("a length that is none", POST + b"content-length: x\r\n" + END, 400),
    ("a folded line", GET + HOST + b"a: b\r\n c\r\n" + END, 400),
    ("a folded first line", GET + b" a: b\r\n" + HOST + END, 400),
    ("a folded coding", POST + b"transfer-encoding:\r\n chunked\r\n" + NO_BODY, 400),
    ("a space before the colon", GET + b"host : here\r\n" + END, 400),
    ("lines without CR", b"GET /x HTTP/1.1\nhost: here\n\n", 400),
    ("no chunk", POST + CHUNKED + b"\r\nnonsense\r\n", 400),
    ("a head without an end", GET + b"x: " + b"y" * MAX_HEAD_BYTES, 431),
    ("a long head", GET + HOST + b"a: b\r\n" * 12_000 + END, 431),
    ("a long address", b"GET /" + b"x" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n" + HOST + END, 431),
    ("many headers", GET + HOST + b"a: b\r\n" * MAX_HEADERS + END, 431),
    ("long trailers", POST + CHUNKED + b"\r\n0\r\n" + b"a: b\r\n" * 12_000, 431),
]
TAKEN = [
    ("an old client without a host", b"GET /x HTTP/1.0\r\n" + END),
    ("an empty host", GET + b"host:\r\nconnection: close\r\n" + END),
    ("an IPv6 host", GET + b"host: [::1]:8800\r\nconnection: close\r\n" + END),
    ("capitals", b"GET /x HTTP/1.1\r\nHOST: Here.Local\r\nConnection: Close\r\n\r\n"),
    (
        "chunks by another spelling",
        POST + b"connection: close\r\nTransfer-Encoding: Chunked\r\n" + NO_BODY,
    ),
]
CODES = {
    400: "invalid_value",
    431: "head_too_long",
    501: "not_implemented",
    505: "http_version_not_supported",
}


@pytest.mark.parametrize(
    ("sent", "status"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED]
)
async def test_a_head_that_could_be_read_in_two_ways_or_in_none_is_refused(
    sent: bytes, status: int
) -> None:
    async with serving(echo) as server:
        caller = await server.call()
        caller.send(sent)
        head, _, body = (await caller.rest()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in head
    assert b"x-should-retry: false" in head
    assert json.loads(body)["code"] == CODES[status]


@pytest.mark.parametrize("sent", [each[1] for each in TAKEN], ids=[each[0] for each in TAKEN])
async def test_a_head_that_is_unusual_but_clear_is_accepted(sent: bytes) -> None:
    async with serving(echo) as server:
        caller = await server.call()
        caller.send(sent)
        assert (await caller.rest()).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_refusal_is_spelled_for_the_path_that_was_requested() -> None:
    async with serving(echo) as server:
        caller = await server.call()
        caller.send(b"POST /v1/messages?beta=true HTTP/1.1\r\n\r\n")
        body = (await caller.rest()).partition(b"\r\n\r\n")[2]
    assert json.loads(body) == {
        "code": "invalid_value",
        "message": "A request must have one `Host` header.",
        "path": "/v1/messages",
    }
