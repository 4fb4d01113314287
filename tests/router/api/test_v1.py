"""`/v1/*` on real sockets: which keys are accepted, which bodies, which errors a caller sees."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.protocol.bounds import MAX_BODY_BYTES
from node.protocol.ids import client_id
from node.protocol.messages import StatusEvent
from router.api.bodies import parse_routing, with_model
from router.api.models import Models
from router.api.v1 import RELAYED_PATHS
from router.errors import BadRequest
from tests.router.conftest import (
    CHAT,
    WAIT_S,
    RawCaller,
    Request,
    RunningRouter,
    ScriptedNode,
    StartNode,
    agent_id,
    alias,
    model_status,
    node_status,
)

WHOLE = {"model": "m"}


async def answer(request: Request) -> None:
    await request.answer(b"{}")


async def a_node(router: RunningRouter, start_node: StartNode, *names: str) -> ScriptedNode:
    status = node_status(*(model_status(name) for name in names or ("m",)))
    node = await start_node(answer, first_events=(StatusEvent(status),))
    await router.add(node)
    return node


def inferences(node: ScriptedNode) -> list[Request]:
    return [each for each in node.requests if each.target.startswith("/v1/")]


async def refused(caller: RawCaller, status: int, code: str) -> dict[str, Any]:
    assert await caller.head() == status
    assert caller.headers["content-type"] == "application/json"
    error = await caller.error()
    assert error["code"] == code
    return error


# --- keys ---


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic eA=="}, {"x_api_key": "x"}],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/nothing"])
async def test_a_missing_or_wrong_key_is_401(
    router: RunningRouter, headers: dict[str, str], path: str
) -> None:
    caller = await router.send("POST", path, b"", content_length="0", **headers)
    error = await refused(caller, 401, "invalid_api_key")
    assert error["type"] == "authentication_error"


async def test_a_refused_caller_s_body_is_not_waited_for(router: RunningRouter) -> None:
    caller = await router.send("POST", CHAT, b"", content_length="1000000")
    await refused(caller, 401, "invalid_api_key")


async def test_an_expired_key_is_401(router: RunningRouter) -> None:
    key = router.new_key("inference", expires_at_s=time.time() - 1)
    caller = await router.post(WHOLE, authorization=f"Bearer {key}")
    error = await refused(caller, 401, "invalid_api_key")
    assert "expired" in error["message"]


async def test_a_key_without_the_scope_inference_is_403(router: RunningRouter) -> None:
    key = router.new_key("admin")
    caller = await router.post(WHOLE, authorization=f"Bearer {key}")
    await refused(caller, 403, "permission_denied")


async def test_x_api_key_is_accepted(router: RunningRouter, start_node: StartNode) -> None:
    await a_node(router, start_node)
    caller = await router.send("GET", "/v1/models", x_api_key=router.key)
    assert await caller.head() == 200


# --- paths and methods ---


@pytest.mark.parametrize(
    "path",
    [
        "/v1/",
        "/v1/embeddings",
        CHAT + "/",
        "/v1/modelsx",
        "/v1//models",
        "/v1/responses/",
        "/v1/responses/a/b",
        "/v1/responses/a/cancel/",
        "/v1/requestsx",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_another_path_is_404(router: RunningRouter, method: str, path: str) -> None:
    caller = await router.send(
        method, path, content_length="0", authorization=f"Bearer {router.key}"
    )
    await refused(caller, 404, "not_found")


AN_ID = client_id("resp_", agent_id("a"), "r")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", CHAT),
        ("DELETE", CHAT),
        ("PUT", "/v1/completions"),
        ("POST", "/v1/models"),
        ("GET", "/v1/responses"),
        ("POST", f"/v1/responses/{AN_ID}"),
        ("GET", f"/v1/responses/{AN_ID}/cancel"),
        ("DELETE", f"/v1/responses/{AN_ID}/input_items"),
        ("POST", "/v1/requests"),
        ("GET", "/v1/requests/a"),
    ],
)
async def test_another_method_is_405(router: RunningRouter, method: str, path: str) -> None:
    caller = await router.send(
        method, path, content_length="0", authorization=f"Bearer {router.key}"
    )
    await refused(caller, 405, "method_not_allowed")
    allowed = caller.headers["allow"].split(", ")
    assert allowed and method not in allowed
    assert ("HEAD" in allowed) == ("GET" in allowed)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/responses/compact"),
        ("POST", "/v1/responses/compact/input_items"),
        ("PUT", "/v1/responses/input_tokens"),
        ("POST", "/v1/models/load"),
        ("POST", "/v1/embeddings"),
    ],
)
async def test_a_word_is_not_read_as_the_name_of_a_thing(
    router: RunningRouter, method: str, path: str
) -> None:
    caller = await router.send(
        method, path, content_length="0", authorization=f"Bearer {router.key}"
    )
    error = await refused(caller, 404, "not_found")
    assert error["message"] == f"There is nothing at {path}."


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/requests/"])
async def test_a_list_may_be_requested_with_a_trailing_slash(
    router: RunningRouter, path: str
) -> None:
    caller = await router.send("GET", path, authorization=f"Bearer {router.key}")
    assert json.loads(await caller.body())["object"] == "list"
    assert caller.status == 200


async def test_a_fault_is_500_and_logged_on_a_line_that_no_caller_can_break(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_models: Models, _name: str) -> bytes:
        raise ValueError

    monkeypatch.setattr(Models, "one", fail)
    caller = await router.send(
        "GET", "/v1/models/x%0aWARNING", authorization=f"Bearer {router.key}"
    )
    assert await caller.head() == 500
    assert r"a fault of the router, at '/v1/models/x\nWARNING'" in caplog.text


async def test_head_has_no_body(router: RunningRouter) -> None:
    paths = (CHAT, 405), ("/v1/nothing", 404), ("/v1/models", 200), ("/v1/requests", 200)
    for path, status in paths:
        caller = await router.send("HEAD", path, authorization=f"Bearer {router.key}")
        assert await caller.head() == status
        caller.writer.write_eof()
        assert await asyncio.wait_for(caller.reader.read(), WAIT_S) == b""


@pytest.mark.parametrize("path", sorted(RELAYED_PATHS))
@pytest.mark.parametrize("query", ["", "?beta=true"])
async def test_every_inference_path_is_relayed(
    router: RunningRouter, start_node: StartNode, path: str, query: str
) -> None:
    node = await a_node(router, start_node)
    caller = await router.post(WHOLE, path + query)
    assert await caller.body() == b"{}"
    assert [each.target for each in inferences(node)] == [path]


# --- models ---


async def test_an_unknown_model_names_near_ones(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node, "qwen3-8b")
    caller = await router.post({"model": "qwen3-9b"})
    error = await refused(caller, 404, "model_not_found")
    assert error["param"] == "model"
    assert "Did you mean qwen3-8b?" in error["message"]


async def test_a_model_whose_nodes_are_away_is_503_with_retry_after(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node)
    router.core.fleet.lost("id-a", "It sleeps.")
    caller = await router.post({"model": "m", "stream": True})
    await refused(caller, 503, "no_node_ready")
    assert int(caller.headers["retry-after"]) > 0


# --- bodies ---


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b"", None, "not valid JSON"),
        (b"{", None, "not valid JSON"),
        (b'{"model": "m",}', None, "not valid JSON"),
        (b'{"model": "m"} x', None, "not valid JSON"),
        (b'{"model": "\xff"}', None, "not valid JSON"),
        (b'{"model": "m", "x": ' + b"[" * 50_000, None, "not valid JSON"),
        (b"[]", None, "must be a JSON object"),
        (b'"m"', None, "must be a JSON object"),
        (b"{}", "model", "missing"),
        (b'{"model": null}', "model", "Expected `str`"),
        (b'{"model": 7}', "model", "Expected `str`"),
        (b'{"model": ["m"]}', "model", "Expected `str`"),
        (b'{"model": "m", "stream": "yes"}', "stream", "Expected `bool | null`"),
        (b'{"model": "m", "stream": 1}', "stream", "Expected `bool | null`"),
    ],
)
async def test_a_bad_body_is_400_and_names_the_field(
    router: RunningRouter, start_node: StartNode, body: bytes, param: str | None, words: str
) -> None:
    node = await a_node(router, start_node)
    caller = await router.post(body)
    error = await refused(caller, 400, "invalid_value")
    assert error["param"] == param and words in error["message"]
    assert inferences(node) == []


@pytest.mark.parametrize("stream", [b"null", b"false", b"true"])
async def test_stream_may_be_null(
    router: RunningRouter, start_node: StartNode, stream: bytes
) -> None:
    node = await a_node(router, start_node)
    body = b'{"model":"m","stream":' + stream + b"}"
    await (await router.post(body)).body()
    assert inferences(node)[0].body == body


async def test_a_body_passes_byte_by_byte(router: RunningRouter, start_node: StartNode) -> None:
    node = await a_node(router, start_node)
    body = b' { "model" : "m" ,\n "x": 1.50, "y": "\\u00e9\xc3\xa9", "z": [ ] } \n'
    await (await router.post(body)).body()
    assert inferences(node)[0].body == body


async def test_a_chunked_body_reaches_the_node_with_a_length(
    router: RunningRouter, start_node: StartNode
) -> None:
    node = await a_node(router, start_node)
    caller = await router.send(
        "POST",
        CHAT,
        b'6\r\n{"mode\r\n6\r\nl":"m"\r\n1\r\n}\r\n0\r\n\r\n',
        authorization=f"Bearer {router.key}",
        transfer_encoding="chunked",
    )
    assert await caller.body() == b"{}"
    (request,) = inferences(node)
    assert request.body == b'{"model":"m"}'
    assert request.header("content-length") == "13"
    assert request.header("transfer-encoding") is None


async def test_an_alias_s_model_is_spliced_and_nothing_else_changed(
    router: RunningRouter, start_node: StartNode
) -> None:
    node = await a_node(router, start_node, "org/m")
    router.core.names.put(alias("fast", "org/m"))
    rest = b'"a":{"model":"fast"},"b":1.50,"c":"\\u00e9\xc3\xa9","d":[1, 2 ],"e":null'
    await (await router.post(b'{"model":"fast",' + rest + b"}")).body()
    (request,) = inferences(node)
    assert request.body == b'{"model":"org/m",' + rest + b"}"
    assert request.header("x-fleet-requested-model") == "fast"


async def test_a_body_with_an_alias_and_a_broken_key_is_400(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node)
    router.core.names.put(alias("fast", "m"))
    caller = await router.post(b'{"model":"fast","\xff":1}')
    await refused(caller, 400, "invalid_value")


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ({"traceparent": PARENT}, (PARENT, None)),
        ({"traceparent": PARENT, "tracestate": "a=1, b@v=x y"}, (PARENT, "a=1, b@v=x y")),
        ({"traceparent": PARENT, "tracestate": "no state"}, (PARENT, None)),
        ({"traceparent": PARENT, "tracestate": "a=" + "x" * 600}, (PARENT, None)),
        ({"tracestate": "a=1"}, (None, None)),
        ({"traceparent": PARENT.upper(), "tracestate": "a=1"}, (None, None)),
        ({"traceparent": "ff" + PARENT[2:]}, (None, None)),
        ({"traceparent": f"00-{'0' * 32}-b7ad6b7169203331-01"}, (None, None)),
        ({"traceparent": PARENT + " x"}, (None, None)),
    ],
)
async def test_a_trace_passes_where_it_is_one(
    router: RunningRouter,
    start_node: StartNode,
    given: dict[str, str],
    passed: tuple[str | None, str | None],
) -> None:
    node = await a_node(router, start_node)
    await (await router.post(WHOLE, **given)).body()
    (request,) = inferences(node)
    assert (request.header("traceparent"), request.header("tracestate")) == passed


async def test_a_very_long_model_name_does_not_stall_the_router(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node, *(f"qwen3-{size}b" for size in range(50)))
    caller = await router.post({"model": "qwen3" * 2_000_000})
    error = await refused(caller, 404, "model_not_found")
    assert len(error["message"]) < 400


async def send_in_pieces(caller: RawCaller, total: int, *, chunked: bool) -> None:
    """Sends as a client does that reads the answer only afterwards."""
    piece = b" " * (1 << 20)
    for _ in range(total // len(piece)):
        caller.writer.write(b"100000\r\n%b\r\n" % piece if chunked else piece)
        await caller.writer.drain()


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_of_40_mib_is_413(
    router: RunningRouter, start_node: StartNode, chunked: bool
) -> None:
    node = await a_node(router, start_node)
    total = 40 << 20
    framing = {"transfer_encoding": "chunked"} if chunked else {"content_length": str(total)}
    caller = await router.send("POST", CHAT, b"", x_api_key=router.key, **framing)
    sending = asyncio.create_task(send_in_pieces(caller, total, chunked=chunked))
    await refused(caller, 413, "body_too_large")
    await asyncio.wait_for(sending, 20)
    assert inferences(node) == []


async def test_a_body_of_the_greatest_size_passes(
    router: RunningRouter, start_node: StartNode
) -> None:
    node = await a_node(router, start_node)
    body = b'{"model":"m"}'.ljust(MAX_BODY_BYTES)
    caller = await router.post(body)
    assert await caller.body() == b"{}"
    (request,) = inferences(node)
    assert request.body == body
    assert request.header("content-length") == str(MAX_BODY_BYTES)


async def test_a_kept_connection_serves_after_an_error(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node)
    caller = await router.post(b"nonsense")
    await refused(caller, 400, "invalid_value")
    caller.status = 0
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-api-key: {router.key}\r\ncontent-length: 13\r\n\r\n"
    )
    caller.writer.write(head.encode() + b'{"model":"m"}')
    assert await caller.body() == b"{}"
    assert caller.status == 200


# --- the parsers alone ---


@given(st.binary(max_size=40))
def test_any_bytes_are_parsed_or_a_bad_request(data: bytes) -> None:
    for body in (data, b'{"model":"' + data + b'"}', b'{"model":"m","' + data + b'":1}'):
        for path in ("/v1/responses", "/api/chat"):
            try:
                with_model(parse_routing(body, path).fields, "x")
            except BadRequest as error:
                assert error.status == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=6).filter(lambda name: name != "stream"), JSON, max_size=5),
    st.text(max_size=8),
)
def test_splicing_changes_the_model_only(fields: dict[str, Any], model: str) -> None:
    body = json.dumps({**fields, "model": "alias"}).encode()
    spliced = json.loads(with_model(parse_routing(body, CHAT).fields, model))
    assert spliced == {**fields, "model": model}
    assert list(spliced) == list(json.loads(body))
