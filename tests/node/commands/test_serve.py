"""The agent as a process: where it listens, what it prints, how it ends."""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from node.commands.serve import GRACE_S, bind, check_bind, reachable_host, url_of
from node.errors import StartError
from node.settings import Settings

WAIT_S = 30
pytestmark = pytest.mark.timeout(90)


@contextmanager
def agent(home: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "node.cli", "serve", "--home", str(home), "--port", "0"]
    with subprocess.Popen(
        [*command, "--engine", "scripted", "--exit-on-stdin-eof", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_until_listening(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    deadline_s = time.monotonic() + WAIT_S
    while not lines or "listening" not in lines[-1]:
        left_s = deadline_s - time.monotonic()
        assert select.select([process.stdout], [], [], max(left_s, 0))[0], "it does not listen"
        lines.append(process.stdout.readline().rstrip("\n"))
        assert lines[-1], "it ended"
    return lines


def test_serves_prints_its_token_once_and_ends_with_its_parent(tmp_path: Path) -> None:
    with agent(tmp_path) as process:
        lines = lines_until_listening(process)
        assert re.fullmatch(r"node-agent listening on http://127\.0\.0\.1:\d+", lines[-1])
        url = lines[-1].split()[-1]
        token = (tmp_path / "token").read_text().strip()
        assert f"router add-node {url} --token {token}" in "\n".join(lines)
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
        with httpx.Client(
            base_url=url,
            headers={"authorization": f"Bearer {token}"},
            timeout=WAIT_S,
            trust_env=False,
        ) as client:
            answer = client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200
            assert answer.json()["usage"]["completion_tokens"] == 32
            assert len(client.get("/scripted").json()["records"]) == 1
            with client.stream("GET", "/fleet/events", headers={"x-fleet-protocol": "1"}) as events:
                # An event stream must not hold the shutdown up.
                assert events.status_code == 200
                assert process.stdin is not None
                process.stdin.close()
                assert process.wait(GRACE_S - 2) == 0
    with agent(tmp_path) as process:
        assert len(lines_until_listening(process)) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_a_port_in_use_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        agent(tmp_path, "--port", str(taken.getsockname()[1])) as process,
    ):
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert (out, err.count("\n")) == ("", 1)
    assert "is in use" in err


def test_a_bad_script_stops_the_start_with_one_line(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"wegde": true}')
    with agent(tmp_path, "--script", str(script)) as process:
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert err.count("\n") == 1
    assert "wegde" in err


def test_a_bind_beyond_loopback_needs_a_flag(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"192\.0\.2\.1 is not a loopback address"):
        check_bind(Settings(home=tmp_path, host="192.0.2.1"))
    check_bind(Settings(home=tmp_path, host="192.0.2.1", allow_plain_http=True))
    for host in ("127.0.0.1", "localhost", "::1"):
        check_bind(Settings(home=tmp_path, host=host))


def test_an_address_of_another_machine_is_refused_with_a_sentence() -> None:
    with pytest.raises(StartError, match=r"192\.0\.2\.1"):
        bind("192.0.2.1", 0)


def test_names_the_machine_where_it_binds_every_address() -> None:
    assert reachable_host("0.0.0.0") == socket.gethostname()
    assert reachable_host("127.0.0.1") == "127.0.0.1"
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert url_of("::1", listener) == f"http://[::1]:{port}"
