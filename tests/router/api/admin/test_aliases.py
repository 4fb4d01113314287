"""`/admin/aliases`, on a running router."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from registry import audit, usage
from registry.records import UsageRecord
from router.records.ledger import reported_row
from tests.router.api.test_v1 import a_node
from tests.router.conftest import FINISHED, RunningRouter, StartNode


def targets(*models: str) -> list[dict[str, Any]]:
    return [{"model": model} for model in models]


def row(request_id: str) -> UsageRecord:
    return msgspec.structs.replace(
        reported_row("id-a", "i1", "key", FINISHED), request_id=request_id
    )


async def call(router: RunningRouter, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    key = router.core.settings.current.admin_key_file.read_text().strip()
    data = b"" if body is None else json.dumps(body).encode()
    caller = await router.send(
        method,
        f"/admin{path}",
        data,
        authorization=f"Bearer {key}",
        content_type="application/json",
        content_length=str(len(data)),
    )
    answer = json.loads(await caller.body())
    return caller.status, answer


async def put(router: RunningRouter, name: str, *models: str, **fields: Any) -> tuple[int, Any]:
    body = {"targets": targets(*models), **fields}
    return await call(router, "PUT", f"/aliases/{name}", body)


async def refusal(router: RunningRouter, name: str, *models: str, **fields: Any) -> tuple[int, str]:
    status, answer = await put(router, name, *models, **fields)
    return status, answer["error"]["message"]


async def test_an_alias_is_made_moved_and_removed(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node, "tiny", "org/big")
    status, row = await put(router, "gpt/4", "tiny")
    assert (status, row["known"], row["selector"], row["spill_at"]) == (200, True, "first", None)
    assert router.core.names.resolve("gpt/4") == "tiny"
    await put(router, "gpt/4", "org/big", "tiny", selector="spillover", spill_at=3)
    assert router.core.names.resolve("gpt/4") == "org/big"
    _, row = await call(router, "GET", "/aliases/gpt/4")
    assert [each["model"] for each in row["targets"]] == ["org/big", "tiny"]
    assert (row["selector"], row["spill_at"]) == ("spillover", 3)
    await call(router, "DELETE", "/aliases/gpt/4")
    assert await call(router, "GET", "/aliases") == (200, [])
    assert (await call(router, "GET", "/aliases/gpt/4"))[0] == 404
    assert (await call(router, "DELETE", "/aliases/gpt/4"))[0] == 404
    async with router.core.registry.read() as session:
        verbs = [(entry.verb, entry.detail) for entry in await audit.recent(session, 4)]
    assert verbs == [
        ("DELETE", "There is no alias 'gpt/4'; `router alias list` shows what exists."),
        ("alias.remove", ""),
        ("alias.set", "org/big, tiny"),
        ("alias.set", "tiny"),
    ]


async def test_an_alias_must_lead_to_models_and_hide_none(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node, "tiny", "big")
    status, text = await refusal(router, "gpt", "tinny")
    assert status == 404 and "Did you mean tiny?" in text
    assert (await refusal(router, "gpt", "tiny", "gone"))[0] == 404
    status, text = await refusal(router, "big", "tiny")
    assert status == 409 and "would hide it" in text
    assert (await refusal(router, "gpt", "gpt"))[0] == 404
    assert "no spaces" in (await refusal(router, "a%20b", "tiny"))[1]
    assert "twice" in (await refusal(router, "gpt", "tiny", "tiny"))[1]
    assert "a pattern" in (await refusal(router, "gpt", "t*", force=True))[1]
    _, forced = await put(router, "gpt", "later", force=True)
    assert forced["known"] is False
    assert "itself an alias of 'later'" in (await refusal(router, "other", "gpt"))[1]
    assert "itself an alias" in (await refusal(router, "other", "tiny", "other"))[1]
    status, text = await refusal(router, "later", "tiny")
    assert status == 409 and "'gpt' points at" in text


async def test_a_model_s_own_name_may_be_given_other_models_to_fall_back_on(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node, "tiny", "big")
    assert (await put(router, "gpt", "big"))[0] == 200
    assert (await put(router, "big", "big", "tiny"))[0] == 200
    assert (await put(router, "big", "big", "tiny"))[0] == 200
    assert (await put(router, "gpt", "big", "tiny"))[0] == 200


async def test_defaults_are_kept_and_shown(router: RunningRouter, start_node: StartNode) -> None:
    await a_node(router, start_node, "tiny")
    defaults = {"temperature": 0.2, "chat_template_kwargs": {"enable_thinking": False}}
    body = {"targets": [{"model": "tiny", "defaults": defaults}]}
    status, row = await call(router, "PUT", "/aliases/calm", body)
    assert (status, row["targets"][0]["defaults"]) == (200, defaults)
    assert router.core.names.route("calm").targets[0].defaults == defaults


REFUSED_DEFAULTS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 3}, "temperature"),
    ({"temperature": "0,5"}, "temperature"),
    ({"reasoning_effort": "huge"}, "reasoning_effort"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"chat_template_kwargs": {"tools": []}}, "tools is not for an alias"),
    ({"reasoning_effort": "none", "enable_thinking": True}, "contradicts"),
    ({"enable_thinking": False, "max_thinking_tokens": 5}, "which is off"),
]


async def test_a_default_that_no_path_would_accept_is_refused(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node, "tiny")
    for fields, named in REFUSED_DEFAULTS:
        body = {"targets": [{"model": "tiny", "defaults": fields}]}
        status, answer = await call(router, "PUT", "/aliases/calm", body)
        assert status == 400 and named in answer["error"]["message"], fields


async def test_a_selector_goes_with_what_it_needs(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node, "tiny")
    for fields in (
        {"selector": "spillover"},
        {"spill_at": 2},
        {"selector": "last"},
        {"selector": "spillover", "spill_at": 0},
    ):
        assert (await refusal(router, "gpt", "tiny", **fields))[0] == 400, fields


async def test_twenty_are_set_at_once_while_usage_is_written(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node, "tiny")
    registry = router.core.registry
    done = asyncio.Event()

    async def write(batch: int) -> None:
        rows = [row(f"{batch}-{number}") for number in range(500)]
        await registry.write(lambda session: usage.add_many(session, rows))

    async def keep_writing() -> int:
        batches = 0
        while not done.is_set():
            await write(batches)
            batches += 1
        return batches

    writer = asyncio.create_task(keep_writing())
    answers = await asyncio.gather(*(put(router, f"alias-{n}", "tiny") for n in range(20)))
    done.set()
    assert await writer > 0
    assert [status for status, _ in answers] == [200] * 20
    assert len(router.core.names.aliases) == 20
