"""Tests settings files and reloads with real processes."""

import json
import signal
from pathlib import Path

import httpx

from tests.acceptance.processes import admin, agent, register, router, run_cli
from tests.fakes import NO_TLS

BODY = {
    "model": "scripted",
    "stream": True,
    "max_tokens": 2000,
    "messages": [{"role": "user", "content": "hello"}],
}


def test_a_router_follows_its_file_and_loses_no_request(tmp_path: Path) -> None:
    file = tmp_path / "home" / "router" / "config.toml"
    assert run_cli("router", tmp_path / "home", "config", "init").returncode == 0
    file.write_text(file.read_text() + "\nqueue_limit = 7\n")
    with (
        agent(tmp_path / "node", {"token_interval_s": 0.05}) as node,
        router(tmp_path / "home") as front,
    ):
        register(front, "node1", node)
        url = front.url + "/v1/chat/completions"
        with httpx.stream(
            "POST", url, json=BODY, headers=front.headers, timeout=30, verify=NO_TLS
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            file.write_text('stall = "3m"\nport = 1\nprot = 2\n')
            refused = front.cli("reload")
            assert refused.returncode == 2
            assert "config.toml:3: prot is not a setting; did you mean port?" in refused.stderr
            file.write_text('stall = "3m"\nlog_requests = true\nregistry_url = "/x"\n')
            told = front.must("reload")
            assert "--stall: 150s -> 3m" in told and "--queue-limit: 7 -> 256" in told
            assert "only a restart applies these:\n  --registry-url: " in told
            file.write_text("log_requests = true\n")
            front.running.process.send_signal(signal.SIGHUP)
            front.running.wait_for(r"--stall is 150s now, not 3m\.")
            seen = sum(line.startswith("data: ") for line, _ in zip(lines, range(9), strict=False))
            assert seen > 3, "the stream goes on"
        front.running.wait_for(r"completions scripted on node1 for \S+: ")
        rows = json.loads(front.must("audit", "--json"))
        assert [row["detail"] for row in rows if row["verb"] == "settings.reload"] == [
            "--log-requests, --queue-limit, --stall"
        ]
        assert httpx.get(front.url + "/admin/nodes", headers=admin(front)).status_code == 200


def test_an_agent_follows_its_file(tmp_path: Path) -> None:
    file = tmp_path / "node" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('stall_timeout = "3m"\n')
    with agent(tmp_path, {}) as node:
        file.write_text('stall_timeout = "4m"\nkeep_alive = ["forever"]\nmax_rows = 2\n')
        node.running.process.send_signal(signal.SIGHUP)
        node.running.wait_for(r"--keep-alive is forever now, not 1h\.")
        node.running.wait_for(r"--stall-timeout is 4m now, not 3m\.")
        node.running.wait_for(r"--max-rows stays auto, up to 16 until a restart; then it is 2\.")
        file.write_text("stall = 1\n")
        node.running.process.send_signal(signal.SIGHUP)
        node.running.wait_for(r"Nothing was reloaded: .*config\.toml:1: stall is not a setting")
        assert node.get("/v1/node/status")["models"]
