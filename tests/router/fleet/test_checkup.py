"""Tests the diagnosis of nodes that do not respond as they should."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from node.protocol.messages import encode_status
from registry.records import NodeRecord
from router.fleet.checkup import Finding, NodeCheck, check_nodes, clock_ahead_s
from router.upstream import host_name
from serving.unreached import Cause
from serving.version import own_version
from tests.router.conftest import Request, Script, StartNode, node_record, node_status

STATUS = msgspec.structs.replace(node_status(node_id="id-a"), version=own_version())


def saying(status: str, body: bytes) -> Script:
    async def script(request: Request) -> None:
        await request.answer(body, status)

    return script


async def found(record: NodeRecord) -> NodeCheck:
    (check,) = await check_nodes([record])
    assert (check.node, check.url) == (record.name, record.url)
    assert check.took_s >= 0
    return check


async def test_a_node_that_answers_is_well(start_node: StartNode) -> None:
    node = await start_node(saying("200 OK", encode_status(STATUS)))
    check = await found(node_record(node.url))
    assert (check.level, check.finding) == ("ok", Finding.OK)
    assert check.message == f"It responds: M0, mlx-fleet {own_version()}."
    assert check.addresses == ("127.0.0.1",)


@pytest.mark.parametrize(
    ("status", "level", "finding", "word"),
    [
        (msgspec.structs.replace(STATUS, version="9.9"), "warn", Finding.OTHER_VERSION, "9.9"),
        (msgspec.structs.replace(STATUS, node_id="b"), "fail", Finding.OTHER_AGENT, "add it again"),
    ],
)
async def test_an_agent_that_is_not_as_it_should_be_is_reported(
    start_node: StartNode, status: Any, level: str, finding: str, word: str
) -> None:
    node = await start_node(saying("200 OK", encode_status(status)))
    check = await found(node_record(node.url))
    assert (check.level, check.finding) == (level, finding)
    assert word in check.message


@pytest.mark.parametrize(
    ("status", "body", "finding", "word"),
    [
        ("401 Unauthorized", b"{}", Finding.TOKEN, "router remove-node a"),
        ("426 Upgrade Required", b'{"message": "Version 3."}', Finding.PROTOCOL, "Version 3."),
        ("404 Not Found", b"", Finding.REFUSED, "is it a node agent?"),
        ("200 OK", b"<html>", Finding.REFUSED, "node agent"),
    ],
)
async def test_a_node_that_refuses_the_call_is_reported_with_its_reason(
    start_node: StartNode, status: str, body: bytes, finding: str, word: str
) -> None:
    node = await start_node(saying(status, body))
    check = await found(node_record(node.url))
    assert (check.level, check.finding) == ("fail", finding)
    assert word in check.message


async def test_the_models_of_a_server_of_others_are_requested(start_node: StartNode) -> None:
    node = await start_node(saying("200 OK", b'{"data": [{"id": "m"}]}'))
    check = await found(node_record(node.url, kind="openai"))
    assert (check.level, check.message) == ("ok", "It responds, and lists 1 models.")


async def test_a_name_that_does_not_resolve_and_a_port_that_nobody_listens_on_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look_up(host: str, port: int, *, flags: int = 0) -> Sequence[Any]:
        if host.endswith(".local"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)

    monkeypatch.setattr(host_name, "look_up", look_up)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        urls = ("http://studio.local:8801", f"http://127.0.0.1:{port}")
        checks = await check_nodes(
            [node_record(url, name) for url, name in zip(urls, "ab", strict=True)]
        )
    assert [check.finding for check in checks] == [Cause.NAME, Cause.REFUSED]
    assert (
        "http://studio.local:8801 cannot be reached: its name does not resolve" in checks[0].message
    )
    assert [check.addresses for check in checks] == [(), ("127.0.0.1",)]


@pytest.mark.parametrize(
    ("node_s", "ahead_s"),
    [(100.5, 0.0), (100.0, 0.0), (101.0, 0.0), (131.0, 30.0), (70.0, -30.0), (0.0, 0.0)],
)
def test_a_clock_is_wrong_by_what_the_call_does_not_explain(node_s: float, ahead_s: float) -> None:
    assert clock_ahead_s(node_s, 100.0, 101.0) == ahead_s


@pytest.mark.parametrize(("shift_s", "word"), [(60.0, "60 s ahead of"), (-61.0, "behind")])
async def test_a_node_whose_clock_is_wrong_is_warned_of(
    start_node: StartNode, shift_s: float, word: str
) -> None:
    status = msgspec.structs.replace(STATUS, now_unix_s=time.time() + shift_s)
    node = await start_node(saying("200 OK", encode_status(status)))
    check = await found(node_record(node.url))
    assert (check.level, check.finding) == ("warn", Finding.CLOCK)
    assert word in check.message and "timedatectl" in check.message
