"""Operates a fleet as its admin does, with real processes: from the pairing of its nodes to the
restore of a backup."""

import json
import shutil
from pathlib import Path
from typing import Any

import httpx

from tests.acceptance.paired_fleet import CLIENTS, Machine, PairedFleet, load, machines
from tests.acceptance.processes import Router, admin, run_cli
from tests.fakes import NO_TLS

SCRIPT = {"token_interval_s": 0.01, "max_rows": 8}
BODY = {"model": "scripted", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
MOST_TRIES = 20


def chat(front: Router, key: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    url = front.url + "/v1/chat/completions"
    return httpx.post(url, json=BODY, headers=headers, timeout=60, verify=NO_TLS)


def create(front: Router, what: str, **fields: object) -> dict[str, Any]:
    """Creates a key or a team, as `router keys create` does, without a process for it."""
    url = f"{front.url}/admin/{what}"
    response = httpx.post(url, headers=admin(front), json=fields, timeout=60, verify=NO_TLS)
    assert response.is_success, response.text
    row: dict[str, Any] = response.json()
    return row


def rows(front: Router, path: str) -> list[dict[str, Any]]:
    response = httpx.get(front.url + path, headers=admin(front), timeout=60, verify=NO_TLS)
    found: list[dict[str, Any]] = response.raise_for_status().json()
    return found


def pair_by_command(front: Router, name: str, agent: Machine) -> None:
    """Types the agent's code at the router."""
    (agent.home / "node" / "config.toml").write_text(f"port = {agent.port}\n")
    shown = run_cli("node.cli", agent.home, "pair", "--json")
    code = json.loads(shown.stdout)["code"]
    added = front.must("add-node", agent.tls_url, "--name", name, "--code", code)
    assert f"Added the node {name} at {agent.tls_url}." in added


def use_up_a_limit(front: Router) -> tuple[str, str]:
    """Makes a team with two keys, and sends chats with both until one is at its limit; returns the
    keys."""
    create(front, "teams", name="lab", limits={"tokens_per_day": 100_000})
    limits = {"requests_per_minute": 1}
    ann: str = create(front, "keys", name="ann", team="lab", limits=limits)["key"]
    bob: str = create(front, "keys", name="bob", team="lab")["key"]
    for _ in range(MOST_TRIES):
        assert chat(front, bob).status_code == 200
        refused = chat(front, ann)
        if refused.status_code != 200:
            break
    assert refused.status_code == 429, refused.text
    assert int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert chat(front, bob).status_code == 200
    return ann, bob


def drain_under_load(front: Router) -> None:
    with load(front) as clients:
        front.must("drain", "mini")
        at_drain = len(clients.nodes)
        clients.wait_for(2 * CLIENTS)
        # Responses that were complete by then may be counted a little later.
        assert set(clients.nodes[at_drain + CLIENTS :]) == {"studio"}
        front.must("uncordon", "mini")
        clients.wait_for(CLIENTS)


def known(front: Router) -> dict[str, list[Any]]:
    """The parts of the fleet, as an admin sees them. A restore makes new keys for the router's own
    machine."""
    nodes, teams = rows(front, "/admin/nodes"), rows(front, "/admin/teams")
    keys = [row for row in rows(front, "/admin/keys") if "-restored" not in row["name"]]
    return {
        "nodes": [[row[name] for name in ("id", "name", "url", "state")] for row in nodes],
        "keys": [[row[name] for name in ("id", "name", "team", "limits")] for row in keys],
        "teams": [[row[name] for name in ("name", "limits")] for row in teams],
    }


def wipe_and_restore(fleet: PairedFleet, file: Path) -> None:
    home = fleet.router.home
    fleet.router.stop()
    shutil.rmtree(home)
    restored = run_cli("router", home, "restore", str(file))
    assert restored.returncode == 0, restored.stderr
    fleet.router.start()


def test_a_fleet_is_paired_limited_drained_backed_up_wiped_and_restored(tmp_path: Path) -> None:
    file = tmp_path / "fleet.backup"
    with machines(tmp_path, ("mini", "studio"), SCRIPT) as fleet:
        front = fleet.front
        pair_by_command(front, "mini", fleet.agents["mini"])
        fleet.pair("studio")
        assert all(row["reachable"] for row in rows(front, "/admin/nodes"))
        ann, bob = use_up_a_limit(front)
        drain_under_load(front)
        before = known(front)
        assert "2 nodes" in front.must("backup", str(file))
        wipe_and_restore(fleet, file)
        again = fleet.front
        assert known(again) == before
        assert all(row["reachable"] for row in rows(again, "/admin/nodes"))
        assert chat(again, bob).status_code == 200
        assert chat(again, ann).status_code in (200, 429)
        assert chat(again, "mlxf-unknown").status_code == 401
