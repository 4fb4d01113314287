"""Tests that a program that cannot start or is killed prints one clear line and leaves no
process."""

import json
import os
import signal
import socket
import sqlite3
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.acceptance.processes import Router, Running, agent, fleet, router, run_cli
from tests.fakes import AT_ONCE_S


def one_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == 1, text
    return lines[0]


def gone_within(pids: list[int], seconds: float) -> bool:
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _gone, alive = psutil.wait_procs(processes, timeout=seconds)
    return all(p.status() == psutil.STATUS_ZOMBIE for p in alive)


def children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


@pytest.fixture
def front(tmp_path: Path) -> object:
    with router(tmp_path) as running:
        yield running


def test_a_second_router_on_the_same_registry_reports_it(front: Router, tmp_path: Path) -> None:
    second = run_cli("router", tmp_path, "serve", "--port", "0")
    assert second.returncode == 2
    assert "registry" in one_line(second.stderr)


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for module in ("router", "node.cli"):
            arguments = ["serve", "--port", port]
            if module == "node.cli":
                arguments += ["--engine", "scripted"]
            done = run_cli(module, tmp_path / module, *arguments)
            assert done.returncode == 2
            assert port in one_line(done.stderr)


def test_a_registry_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with router(tmp_path) as front:
        registry = front.registry
    with sqlite3.connect(registry) as database:
        database.execute("update alembic_version set version_num = '9999'")
    database.close()
    done = run_cli("router", tmp_path, "serve", "--port", "0")
    assert done.returncode == 2
    assert "newer" in one_line(done.stderr)


def test_another_database_than_sqlite_is_refused(tmp_path: Path) -> None:
    done = run_cli(
        "router",
        tmp_path,
        "serve",
        "--port",
        "0",
        "--registry-url",
        "postgresql://db/fleet",
    )
    assert done.returncode == 2
    assert "SQLite" in one_line(done.stderr)


def test_a_router_s_bind_to_the_network_needs_consent(tmp_path: Path) -> None:
    done = run_cli("router", tmp_path, "serve", "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    assert "--allow-plain-http" in one_line(done.stderr)


def test_a_wrong_address_a_wrong_token_and_a_taken_name_have_their_own_messages(
    tmp_path: Path,
) -> None:
    with fleet(tmp_path, {}) as (front, agents):
        each = agents[0]
        wrong_token = front.cli("add-node", each.url, "--name", "other", "--token", "wrong")
        assert wrong_token.returncode == 1
        assert "token" in one_line(wrong_token.stderr)
        nowhere = front.cli("add-node", "http://127.0.0.1:1", "--token", "x")
        assert nowhere.returncode == 1
        assert "cannot be reached" in one_line(nowhere.stderr)
        taken = front.cli("add-node", each.url, "--name", "node1", "--token", each.token)
        assert taken.returncode == 1
        assert "node1" in one_line(taken.stderr)


def test_an_engine_that_is_killed_fails_its_request_and_is_restarted(tmp_path: Path) -> None:
    with fleet(tmp_path, {"token_interval_s": 0.05}) as (front, agents):
        body = {
            "model": "scripted",
            "stream": True,
            "max_tokens": 1000,
            "messages": [{"role": "user", "content": "hello"}],
        }
        url = front.url + "/v1/chat/completions"
        with httpx.stream("POST", url, json=body, headers=front.headers, timeout=30) as stream:
            lines = stream.iter_lines()
            next(lines)
            (engine,) = children(agents[0].running.pid)
            os.kill(engine, signal.SIGKILL)
            killed_s = time.monotonic()
            rest = list(lines)
        assert time.monotonic() - killed_s < AT_ONCE_S
        error = json.loads(next(line for line in rest if '"error"' in line)[len("data: ") :])
        assert error["error"]["code"] == "engine_died"
        assert not any("[DONE]" in line for line in rest)
        again = httpx.post(
            url, json=body | {"stream": False, "max_tokens": 2}, headers=front.headers, timeout=30
        )
        assert again.status_code == 200


def test_an_agent_that_is_killed_leaves_no_engine(tmp_path: Path) -> None:
    with agent(tmp_path, {}) as each:
        answer = httpx.post(
            each.url + "/fleet/load", json={"model": "scripted"}, headers=each.headers, timeout=30
        )
        assert answer.status_code == 200
        engines = children(each.running.pid)
        assert engines
        each.running.kill()
        assert gone_within(engines, AT_ONCE_S)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_router_up_leaves_no_process_however_it_ends(tmp_path: Path, how: int) -> None:
    up = Running(
        ["router", "up", "--port", "0", "--node-port", "0", "--engine", "scripted"],
        tmp_path,
    )
    try:
        up.wait_for(r"curl")
        inside = children(up.pid)
        assert len(inside) >= 2
        up.process.send_signal(how)
        code = up.wait()
        assert how == signal.SIGKILL or code == 0
        assert gone_within(inside, 12.0)
    finally:
        up.stop()


def test_router_up_once_prints_the_answer_and_its_figures(tmp_path: Path) -> None:
    done = run_cli(
        "router",
        tmp_path,
        *("up", "--port", "0", "--node-port", "0", "--engine", "scripted", "--once", "hello"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tokens/s" in done.stdout
    assert "TTFT" in done.stdout
