"""Tests a backup under load, a wiped home and a restore, with real processes."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.acceptance.processes import Router, admin, agent, register, router, run_cli
from tests.fakes import NO_TLS

BODY = {"model": "scripted", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}


@contextmanager
def writing(front: Router) -> Iterator[list[int]]:
    """Makes keys and sends requests, each a write of the registry, until the block ends. Yields
    the statuses of the requests."""
    ended = threading.Event()
    sent: list[int] = []

    def write() -> None:
        with httpx.Client(base_url=front.url, timeout=30, verify=NO_TLS) as client:
            while not ended.is_set():
                key = {"name": f"k{len(sent)}"}
                client.post("/admin/keys", json=key, headers=admin(front)).raise_for_status()
                done = client.post("/v1/chat/completions", json=BODY, headers=front.headers)
                sent.append(done.status_code)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield sent
    finally:
        ended.set()
        writer.join()


def chat(front: Router, headers: dict[str, str]) -> int:
    url = front.url + "/v1/chat/completions"
    return httpx.post(url, json=BODY, headers=headers, timeout=30, verify=NO_TLS).status_code


def test_a_wiped_router_is_the_same_fleet_after_a_restore(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "fleet.backup"
    with agent(tmp_path / "node", {}) as node:
        with router(home) as front:
            register(front, "node1", node)
            with writing(front) as sent:
                for _ in range(3):
                    told = front.must("backup", str(file), "--force")
            assert set(sent) == {200} and len(sent) > 1
            assert "1 node" in told and "usage record" in told
        shutil.rmtree(home)
        done = run_cli("router", home, "restore", str(file))
        assert done.returncode == 0, done.stderr
        assert "admin-restored" in done.stdout
        with router(home) as again:
            assert "node1" in again.must("nodes")
            # The old key is still one; `again` has the new one.
            assert [chat(again, each.headers) for each in (front, again)] == [200, 200]
            assert "registry.restore" in again.must("audit")
