"""Tests that settings which `router connect` prints and writes work, with real processes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.processes import Router, clean_environment, fleet
from tests.fakes import NO_TLS

TEXT = "Paris is the capital"


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Router]:
    with fleet(tmp_path, {"text": TEXT}) as (running, _agents):
        yield running


def connect(front: Router, home: Path, *arguments: str) -> str:
    """The output of the command for the user whose home that is."""
    environ = {**clean_environment(front.running.home), "HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-m", "router", "connect", *arguments, "--router", front.url],
        capture_output=True,
        text=True,
        timeout=60,
        env=environ,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_printed_program_gets_a_response(front: Router, tmp_path: Path) -> None:
    code = connect(front, tmp_path, "openai-python")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert TEXT in done.stdout


def test_the_written_settings_get_a_response_until_the_key_is_revoked(
    front: Router, tmp_path: Path
) -> None:
    connect(front, tmp_path, "claude-code", "--write")
    settings = json.loads((tmp_path / ".claude" / "settings.json").read_text())["env"]

    def ask() -> httpx.Response:
        return httpx.post(
            settings["ANTHROPIC_BASE_URL"] + "/v1/messages",
            headers={"authorization": f"Bearer {settings['ANTHROPIC_AUTH_TOKEN']}"},
            json={
                "model": settings["ANTHROPIC_DEFAULT_HAIKU_MODEL"],
                "max_tokens": 9,
                "messages": [{"role": "user", "content": "hello"}],
            },
            timeout=30,
            verify=NO_TLS,
        )

    assert TEXT in ask().json()["content"][0]["text"]
    (name,) = (
        row["name"]
        for row in json.loads(front.must("keys", "list", "--json"))
        if row["name"].startswith("claude-code@")
    )
    front.must("keys", "revoke", name)
    assert ask().status_code == 401
    connect(front, tmp_path, "claude-code", "--write")
    settings = json.loads((tmp_path / ".claude" / "settings.json").read_text())["env"]
    assert ask().status_code == 200
