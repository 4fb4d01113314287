"""Responses stored on disk: bounded, private to an origin, and never fatal."""

import json
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.dialects.responses.response import StoredResponse
from node.errors import ResponseStoreFault, UnknownPreviousResponse
from node.protocol.chain.prefix import Head
from node.server.response_store import FILE_NAME, ResponseFile, ResponseStore, StoreLimits


def response(name: str, previous: str | None = None, text: str = "x") -> StoredResponse:
    output = [{"id": f"msg_{name}-0", "type": "message", "text": text}]
    body = json.dumps({"id": f"resp_{name}", "output": output}).encode()
    items: list[dict[str, Any]] = [{"id": f"msg_{name}-i0", "type": "message", "text": "in"}]
    before = None if previous is None else f"resp_{previous}"
    return StoredResponse(f"resp_{name}", "m", 7, before, body, items)


def ids(store: ResponseFile, name: str, origin: str = "") -> list[str]:
    """Head of the chain that ends there."""
    return [item["id"] for item in store.history(f"resp_{name}", (), origin).items]


def is_kept(store: ResponseFile, name: str) -> bool:
    """Looks the response up without counting it as used."""
    with sqlite3.connect(store.path) as db:
        found = db.execute("SELECT 1 FROM responses WHERE id = ?", (f"resp_{name}",)).fetchone()
    db.close()
    return found is not None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ResponseFile]:
    file = ResponseFile(tmp_path, StoreLimits())
    yield file
    file.close()


def limited(folder: Path, **limits: int) -> ResponseFile:
    return ResponseFile(folder, StoreLimits(**limits))


def test_what_was_put_is_returned_also_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        store = ResponseFile(tmp_path, StoreLimits())
        if not store.path.exists():
            store.put(response("a"), "")
        assert store.get("resp_a", "") == response("a")
        store.close()


def test_a_response_keeps_where_its_chain_ends(store: ResponseFile) -> None:
    for name, head in (("a", Head(1, 2**64 - 2, 3)), ("b", Head(2**64 - 1, 5, 1 << 31))):
        store.put(response(name), "router/key", head)
        assert store.head(f"resp_{name}", "router/key") == head
    store.put(response("c"), "router/key")
    assert store.head("resp_c", "router/key") is None
    assert store.head("resp_a", "router/other") is None
    assert store.head("resp_x", "router/key") is None


def test_an_id_that_is_in_use_is_not_used_again(store: ResponseFile) -> None:
    assert not store.has("resp_a")
    store.put(response("a"), "router/key")
    assert store.has("resp_a")
    with pytest.raises(ResponseStoreFault):
        store.put(response("a", text="y"), "")
    assert store.get("resp_a", "router/key") == response("a")
    assert store.get("resp_a", "") is None
    store.delete("resp_a", "router/key")
    assert not store.has("resp_a")


def test_a_chain_that_goes_round_ends(store: ResponseFile) -> None:
    store.put(response("a", "b"), "")
    store.put(response("b", "a"), "")
    store.put(response("c", "c"), "")
    for name in "abc":
        with pytest.raises(UnknownPreviousResponse):
            store.history(f"resp_{name}", (), "")


def test_others_find_nothing_and_delete_nothing(store: ResponseFile) -> None:
    store.put(response("a"), "router/key")
    assert store.get("resp_a", "") is None
    assert not store.delete("resp_a", "router/other")
    assert store.history(None, ("msg_a-0",), "router/other").found == {}
    with pytest.raises(UnknownPreviousResponse):
        store.history("resp_a", (), "router/other")
    assert store.delete("resp_a", "router/key")
    assert store.get("resp_a", "router/key") is None
    assert not store.delete("resp_a", "router/key")


def test_a_chain_is_input_and_output_of_each_turn_the_oldest_first(store: ResponseFile) -> None:
    store.put(response("a"), "")
    store.put(response("b", "a"), "")
    store.put(response("c", "b"), "")
    assert ids(store, "b") == ["msg_a-i0", "msg_a-0", "msg_b-i0", "msg_b-0"]
    assert len(ids(store, "c")) == 6


def test_a_chain_with_a_part_gone_is_not_found(store: ResponseFile) -> None:
    store.put(response("a"), "")
    store.put(response("b", "a"), "")
    store.delete("resp_a", "")
    with pytest.raises(UnknownPreviousResponse, match="'resp_b' continues 'resp_a'") as caught:
        store.history("resp_b", (), "")
    assert (caught.value.status, caught.value.code) == (404, "previous_response_not_found")
    assert caught.value.param == "previous_response_id"
    with pytest.raises(UnknownPreviousResponse, match="'resp_z' not found"):
        store.history("resp_z", (), "")


def test_items_are_found_by_their_ids(store: ResponseFile) -> None:
    store.put(response("a-b"), "")
    wanted = ("msg_a-b-0", "msg_a-b-i0", "msg_a-b-1", "msg_c-0", "nothing")
    found = store.history(None, wanted, "").found
    assert sorted(found) == ["msg_a-b-0", "msg_a-b-i0"]
    assert found["msg_a-b-0"]["text"] == "x"


def test_the_least_recently_used_gives_way(tmp_path: Path) -> None:
    store = limited(tmp_path, max_responses=2)
    store.put(response("a"), "")
    store.put(response("b"), "")
    assert store.get("resp_a", "") is not None
    store.put(response("c"), "")
    assert [is_kept(store, name) for name in "abc"] == [True, False, True]
    store.close()


def test_who_goes_on_from_a_response_uses_its_whole_chain(tmp_path: Path) -> None:
    store = limited(tmp_path, max_responses=3)
    store.put(response("a"), "")
    store.put(response("b", "a"), "")
    store.put(response("x"), "")
    assert len(ids(store, "b")) == 4
    store.put(response("c", "b"), "")
    assert [is_kept(store, name) for name in "abcx"] == [True, True, True, False]
    store.close()


def test_referring_to_an_item_uses_its_response(tmp_path: Path) -> None:
    store = limited(tmp_path, max_responses=2)
    store.put(response("a"), "")
    store.put(response("b"), "")
    store.history(None, ("msg_a-0",), "")
    store.put(response("c"), "")
    assert [is_kept(store, name) for name in "abc"] == [True, False, True]
    store.close()


def test_bytes_are_bounded_on_disk(tmp_path: Path) -> None:
    store = limited(tmp_path, max_bytes=200_000)
    for number in range(100):
        # Digits that hardly compress.
        text = "".join(str(hash((number, i))) for i in range(600))
        store.put(response(f"r{number}", text=text), "")
    store.close()
    assert store.path.stat().st_size < 400_000
    assert is_kept(store, "r99")
    assert not is_kept(store, "r0")


def test_what_is_larger_than_all_room_is_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = limited(tmp_path, max_bytes=2000)
    store.put(response("a"), "")
    store.put(response("b", text="".join(map(str, range(4000)))), "")
    assert [is_kept(store, name) for name in "ab"] == [True, False]
    assert "resp_b is too large" in caplog.text
    store.close()


def test_lower_limits_apply_from_the_next_start_on(tmp_path: Path) -> None:
    store = limited(tmp_path)
    for name in "abc":
        store.put(response(name), "")
    store.close()
    store = limited(tmp_path, max_responses=1)
    assert store.get("resp_a", "") is None
    assert store.get("resp_c", "") is not None
    store.close()


def test_only_the_owner_reads_the_file(store: ResponseFile) -> None:
    store.put(response("a"), "")
    files = sorted(store.path.parent.iterdir())
    assert FILE_NAME in [file.name for file in files]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_a_damaged_file_is_moved_aside_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        (tmp_path / FILE_NAME).write_bytes(b"no database " * 1000)
        store = limited(tmp_path)
        with caplog.at_level(logging.WARNING):
            assert store.get("resp_a", "") is None
        store.put(response("a"), "")
        assert store.get("resp_a", "") is not None
        store.close()
        aside = tmp_path / f"{FILE_NAME}.damaged-{number}"
        assert aside.read_bytes().startswith(b"no database")
        assert aside.name in caplog.text


def test_damage_within_the_file_is_found_when_it_is_met(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = limited(tmp_path)
    store.put(response("a"), "")
    store.close()
    with sqlite3.connect(store.path) as db:
        db.execute("UPDATE texts SET body = x'00'")
    db.close()
    assert store.get("resp_a", "") is None
    assert "cannot be read" in caplog.text
    store.put(response("b"), "")
    assert store.get("resp_b", "") is not None
    store.close()


def test_a_file_of_another_version_is_moved_aside(tmp_path: Path) -> None:
    store = limited(tmp_path)
    store.put(response("a"), "")
    store.close()
    with sqlite3.connect(store.path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    assert store.get("resp_a", "") is None
    store.close()


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_an_older_version_is_kept_without_ends_of_chains(
    tmp_path: Path, version: int
) -> None:
    store = limited(tmp_path)
    store.put(response("a"), "", Head(7, 8, 9))
    store.close()
    with sqlite3.connect(store.path) as db:
        for column in ("chain_front", "chain_bytes", *(["chain_head"] if version == 1 else [])):
            db.execute(f"ALTER TABLE responses DROP COLUMN {column}")
        db.execute(f"PRAGMA user_version = {version}")
    db.close()
    assert store.get("resp_a", "") == response("a")
    assert store.head("resp_a", "") is None
    store.put(response("b"), "", Head(7, 8, 9))
    assert store.head("resp_b", "") == Head(7, 8, 9)
    store.close()


def test_a_disk_that_fails_is_an_error_and_the_file_stays(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = limited(tmp_path / "file" / "folder")
    with pytest.raises(ResponseStoreFault):
        store.get("resp_a", "")
    (tmp_path / FILE_NAME).mkdir()
    store = limited(tmp_path)
    with pytest.raises(ResponseStoreFault):
        store.put(response("a"), "")


async def test_the_loops_store_finds_what_was_put_right_before(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path)
    put = store.put(response("a"), "o")
    assert await store.get("resp_a", "o") == response("a")
    assert put.done()
    history = await store.history("resp_a", ("msg_a-0",), "o")
    assert len(history.items) == 2
    assert list(history.found) == ["msg_a-0"]
    assert await store.delete("resp_a", "o")
    with pytest.raises(UnknownPreviousResponse):
        await store.history("resp_a", (), "o")
    await store.close()


async def test_an_answer_is_good_though_it_could_not_be_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    store = ResponseStore(tmp_path / "file")
    assert not await store.put(response("a"))
    assert "resp_a is not stored" in caplog.text
    await store.close()
