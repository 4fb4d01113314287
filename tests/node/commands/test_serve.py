"""The agent as a process: where it listens, what it prints, how it ends."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from node.app import STOP_GRACE_S, NodeApp, build_app, load_token
from node.commands import serve as command
from node.commands.serve import FLUSH_S, GRACE_S, LAST_RESORT_S, checked_stop_s, serve
from node.errors import StartError
from node.protocol.messages import PROTOCOL_VERSION
from node.settings import Settings, sources
from serving.errors import CannotStart

WAIT_S = 30
pytestmark = pytest.mark.timeout(90)


@contextmanager
def agent(home: Path, *options: str, before: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """`before`: a command that runs the agent's."""
    command = [sys.executable, "-m", "node.cli", "serve", "--home", str(home), "--port", "0"]
    with subprocess.Popen(
        [*before, *command, "--engine", "scripted", "--exit-on-stdin-eof", *options],
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


def test_serves_keeps_its_token_to_itself_and_ends_with_its_parent(tmp_path: Path) -> None:
    with agent(tmp_path) as process:
        lines = lines_until_listening(process)
        assert re.fullmatch(r"node-agent listening on http://127\.0\.0\.1:\d+", lines[-1])
        url = lines[-1].split()[-1]
        token = (tmp_path / "token").read_text().strip()
        assert lines[1] == f"  router add-node {url} --token TOKEN"
        assert token not in "\n".join(lines)
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
            with client.stream(
                "GET", "/fleet/events", headers={"x-fleet-protocol": str(PROTOCOL_VERSION)}
            ) as events:
                # An event stream must not delay the shutdown.
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


def test_an_agent_is_announced_beyond_loopback_unless_it_is_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "own_name", lambda: "mac-studio.local")
    settings = Settings(home=tmp_path, engine="scripted", host="0.0.0.0")
    app = build_app(settings)
    announcer = command.announcer_of(settings, 8801, app)
    assert announcer is not None
    service = announcer._service
    assert (service.name, service.port, service.about.host) == (
        "mac-studio",
        8801,
        "mac-studio.local",
    )
    assert service.about.node_id == app.agent.identity.node_id
    for changed in ({"host": "127.0.0.1"}, {"announce": False}):
        assert command.announcer_of(replace(settings, **changed), 8801, app) is None


def test_a_second_agent_on_the_same_home_is_one_line_with_the_first_ones_process(
    tmp_path: Path,
) -> None:
    with agent(tmp_path) as first:
        lines_until_listening(first)
        with agent(tmp_path) as second:
            out, err = second.communicate(timeout=WAIT_S)
        assert (second.returncode, out) == (2, "")
        assert err == (
            f"node-agent: An agent runs on {tmp_path} already (process {first.pid}); stop it, or "
            "give this one another --home.\n"
        )
        first.kill()
        first.wait()
        with agent(tmp_path) as third:
            lines_until_listening(third)


def test_a_home_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with agent(tmp_path / "file" / "home") as process:
        _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err.count("\n")) == (2, 1)
    assert f"{tmp_path}/file/home cannot be used" in err


def test_localhost_is_listened_on_by_every_address_that_it_has(tmp_path: Path) -> None:
    with agent(tmp_path, "--host", "localhost") as process:
        url = lines_until_listening(process)[-1].split()[-1]
        port = int(url.rpartition(":")[2])
        for address in {found[4][0] for found in socket.getaddrinfo("localhost", port)}:
            shown = f"[{address}]" if ":" in str(address) else address
            answer = httpx.get(f"http://{shown}:{port}/health", trust_env=False, timeout=WAIT_S)
            assert answer.status_code == 200


def test_an_open_stream_ends_with_one_error_and_its_usage_at_the_second_ctrl_c(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"stall_after_tokens": 1}')
    with agent(tmp_path, "--script", str(script)) as process:
        url = lines_until_listening(process)[-1].split()[-1]
        (engine_pid,) = started_engine(url, process, tmp_path)
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
        with (
            client_of(url, tmp_path) as client,
            client.stream("GET", "/fleet/events") as events,
            client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer,
            futures.ThreadPoolExecutor() as threads,
        ):
            whole = threads.submit(lambda: client.post("/v1/chat/completions", json=body))
            lines, reported = answer.iter_lines(), events.iter_lines()
            assert '"delta"' in next(lines)
            while '"active_requests":2' not in next(reported):
                pass
            process.send_signal(signal.SIGINT)
            until_refused(url)
            process.send_signal(signal.SIGINT)
            rest = [line for line in lines if line.startswith("data:")]
            assert [json.loads(line[6:])["error"]["code"] for line in rest] == ["shutting_down"]
            refused = whole.result(WAIT_S)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            records = [event for event in map(json.loads, reported) if event["type"] == "finished"]
            assert [(r["reason"], r["completion_tokens"]) for r in records] == [("error", 1)] * 2
        _, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, beyond_info(err)) == (0, [])
    assert not psutil.pid_exists(engine_pid)


def test_a_client_that_does_not_read_is_no_traceback(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"tokens": 30000}')
    body = json.dumps(
        {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    )
    with agent(tmp_path, "--script", str(script)) as process:
        url = lines_until_listening(process)[-1].split()[-1]
        client = client_of(url, tmp_path)
        with client, socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as deaf:
            token = (tmp_path / "token").read_text().strip()
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
                f"authorization: Bearer {token}\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            deaf.sendall((head + body).encode())
            with client.stream("GET", "/fleet/events") as events:
                reported = events.iter_lines()
                while '"type":"finished"' not in next(reported):
                    pass
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, beyond_info(err)) == (0, [])


def client_of(url: str, home: Path) -> httpx.Client:
    token = (home / "token").read_text().strip()
    headers = {"authorization": f"Bearer {token}", "x-fleet-protocol": str(PROTOCOL_VERSION)}
    return httpx.Client(base_url=url, headers=headers, timeout=WAIT_S, trust_env=False)


def started_engine(url: str, process: subprocess.Popen[str], home: Path) -> list[int]:
    with client_of(url, home) as client:
        assert client.post("/fleet/load", json={"model": "scripted"}).status_code == 200
    return [child.pid for child in psutil.Process(process.pid).children()]


def beyond_info(err: str) -> list[str]:
    return [line for line in err.splitlines() if " INFO " not in line]


def until_refused(url: str) -> None:
    """Waits until the agent takes no more connections."""
    port = int(url.rpartition(":")[2])
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionError:
            return
    raise AssertionError("It goes on to take connections.")


def test_a_models_folder_that_is_none_stops_the_start_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("")
    with agent(tmp_path, "--engine", "text") as process:
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert err == f"node-agent: {tmp_path}/models cannot be read: Not a directory.\n"


def test_a_standard_input_that_is_closed_already_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    settings = Settings(home=tmp_path, engine="scripted", port=0, exit_on_stdin_eof=True)
    with pytest.raises(CannotStart, match="Standard input is closed"):
        serve(settings)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_first_start_shows_the_token_to_a_terminal_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    is_terminal: bool,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    monkeypatch.setattr(command, "build_app", stopping)
    settings = Settings(home=tmp_path, port=0, engine="scripted")
    for _ in range(2):
        with pytest.raises(StartError, match="enough"):
            serve(settings)
    shown = capsys.readouterr().out
    assert shown.count("router add-node") == 1
    assert (load_token(settings)[0] in shown) == is_terminal


def stopping(_settings: Settings) -> NodeApp:
    raise StartError("enough")


def test_a_service_has_the_time_that_the_agent_takes_to_end() -> None:
    given = sources({"engine": "scripted"}, {})
    assert checked_stop_s(given) > GRACE_S + STOP_GRACE_S + FLUSH_S + LAST_RESORT_S


def test_settings_that_stop_a_start_stop_the_installation_of_a_service() -> None:
    with pytest.raises(StartError, match="script is for the scripted engine"):
        checked_stop_s(sources({"script": Path("x")}, {}))
