"""Strangers with wrong keys, and keys with letters of every kind."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from urllib.parse import quote

import pytest

from registry import audit
from registry.records import AuditRecord
from router.records.refusals import ENTRIES_A_MINUTE
from tests.fakes import processor_time
from tests.router.api.admin.test_aliases import call
from tests.router.api.test_v1 import a_node
from tests.router.conftest import CHAT, WAIT_S, RunningRouter, StartNode

ATTEMPTS = 10_000
CONNECTIONS = 4


async def refused_many(router: RunningRouter, path: str, number: int) -> None:
    """Sends so many requests with another wrong key each, on a few connections."""
    share = number // CONNECTIONS
    await asyncio.gather(
        *(refused_on_one(router, path, at * share, share) for at in range(CONNECTIONS))
    )


async def refused_on_one(router: RunningRouter, path: str, begin: int, number: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    try:
        for attempt in range(begin, begin + number):
            key = f"mlxf-{attempt:032x}"
            head = f"GET {path} HTTP/1.1\r\nhost: router\r\nauthorization: Bearer {key}\r\n\r\n"
            writer.write(head.encode())
            raw = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert raw.startswith(b"http/1.1 401 "), raw
            size = int(raw.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            assert b"invalid_api_key" in await reader.readexactly(size)
    finally:
        writer.close()


async def entries(router: RunningRouter) -> list[AuditRecord]:
    async with router.core.registry.read() as session:
        return await audit.recent(session, 1000)


async def test_ten_thousand_wrong_keys_cost_little_and_leave_nothing(
    router: RunningRouter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await refused_many(router, "/v1/models", 100)
    gc.collect()
    before = sys.getallocatedblocks()
    with processor_time(30.0):
        await refused_many(router, "/v1/models", ATTEMPTS)
    gc.collect()
    assert sys.getallocatedblocks() - before < 3000
    lines = [record.getMessage() for record in caplog.records if "valid key" in record.message]
    assert len(lines) == 1
    assert lines[0] == "refused a request without a valid key from 127.0.0.1 at '/v1/models'"
    assert "mlxf-0000" not in caplog.text
    assert await (await router.send("GET", "/v1/models", x_api_key=router.key)).head() == 200


async def test_refused_admin_requests_are_audited_but_cannot_fill_the_log(
    router: RunningRouter,
) -> None:
    await refused_many(router, "/admin/keys", 200)
    noted = await entries(router)
    refused = [entry for entry in noted if entry.outcome == "invalid_api_key"]
    first_start = [entry for entry in noted if entry not in refused]
    assert len(refused) == ENTRIES_A_MINUTE
    assert [entry.subject for entry in first_start] == ["first", "admin"]
    newest = refused[0]
    assert (newest.actor, newest.client, newest.verb) == ("", "127.0.0.1", "GET")
    assert newest.subject == "/admin/keys" and "mlxf-" not in str(refused)


async def test_an_admin_request_that_fails_is_audited_with_its_key_and_outcome(
    router: RunningRouter,
) -> None:
    await call(router, "POST", "/keys", {"name": "first"})
    caller = await router.send("GET", "/admin/keys", x_api_key=router.key)
    assert await caller.head() == 403
    assert (await call(router, "GET", "/keys/nobody"))[0] == 404
    forbidden, conflict = (await entries(router))[:2]
    assert (forbidden.actor, forbidden.outcome) == ("first", "permission_denied")
    assert (conflict.actor, conflict.verb, conflict.subject) == ("admin", "POST", "/admin/keys")
    assert conflict.outcome == "conflict" and "taken" in conflict.detail
    status, rows = await call(router, "GET", "/audit?limit=1")
    assert status == 200 and rows[0]["client"] == "127.0.0.1"


@pytest.mark.parametrize(
    "key",
    ["ключ".encode(), "clé".encode("latin-1"), b"\xff\xfe", "💥".encode() * 1000, b"mlxf- \xa0"],
    ids=["utf-8", "latin-1", "no text", "long", "space"],
)
@pytest.mark.parametrize("path", ["/v1/models", "/admin/keys", CHAT])
async def test_a_key_with_any_bytes_is_wrong(router: RunningRouter, key: bytes, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    head = f"GET {path} HTTP/1.1\r\nhost: router\r\nauthorization: Bearer ".encode()
    writer.write(head + key + b"\r\n\r\n")
    raw = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
    writer.close()
    assert raw.startswith(b"HTTP/1.1 401 ")


async def test_a_key_s_name_may_have_letters_of_every_kind(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node)
    name = "ключ-日本-é💥"
    status, made = await call(router, "POST", "/keys", {"name": name, "team": None})
    assert (status, made["name"]) == (201, name)
    caller = await router.post({"model": "m"}, authorization=f"Bearer {made['key']}")
    assert await caller.head() == 200
    path = "/keys/" + quote(name)
    limits = {"limits": {"requests_per_minute": 1}}
    assert (await call(router, "PATCH", path, limits))[1]["name"] == name
    assert (await call(router, "DELETE", path))[0] == 200
    _, rows = await call(router, "GET", "/audit")
    assert [row["subject"] for row in rows[:3]] == [name] * 3
