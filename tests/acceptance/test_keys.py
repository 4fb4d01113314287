"""A team and its keys: command line and clients' own libraries against real processes."""

import json
import time
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.acceptance.processes import Router, agent, register, router

HELLO: Any = [{"role": "user", "content": "hello"}]
ENOUGH = "100k"


def chat(front: Router, key: str) -> int:
    """Tokens of a chat by OpenAI's library."""
    with openai.OpenAI(base_url=front.url + "/v1", api_key=key, max_retries=0) as client:
        answer = client.chat.completions.create(model="scripted", messages=HELLO)
    assert answer.usage is not None
    return answer.usage.total_tokens


def claude(front: Router, key: str) -> None:
    with anthropic.Anthropic(base_url=front.url, api_key=key, max_retries=0) as client:
        client.messages.create(model="scripted", max_tokens=50, messages=HELLO)


def wait_until_used(front: Router, name: str, tokens: int) -> None:
    """Waits until a key has used so many tokens this day."""
    deadline_s = time.monotonic() + 30
    while (now := shown(front, name)["use"]["tokens_today"]) != tokens:
        assert now < tokens and time.monotonic() < deadline_s
        time.sleep(0.1)


def shown(front: Router, name: str) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(front.must("keys", "show", name, "--json"))
    return row


def run_into_limits(front: Router) -> tuple[str, int]:
    """Makes a team with the keys ann and bob; returns bob's key and the tokens of ann's chats."""
    front.must("teams", "create", "lab", "--tokens-per-day", ENOUGH)
    limits = ("--tokens-per-day", ENOUGH, "--requests-per-minute", "2")
    ann = front.must("keys", "create", "ann", "--team", "lab", *limits).strip()
    bob = front.must("keys", "create", "bob", "--team", "lab", "--model", "x*").strip()
    tokens = chat(front, ann) + chat(front, ann)
    with pytest.raises(openai.RateLimitError) as refused:
        chat(front, ann)
    headers = refused.value.response.headers
    assert 0 < int(headers["retry-after"]) <= 30
    assert headers["x-ratelimit-remaining-requests"] == "0"
    wait_until_used(front, "ann", tokens)
    with pytest.raises(openai.NotFoundError):
        chat(front, bob)
    front.must("keys", "update", "bob", "--model", "all")
    front.must("teams", "update", "lab", "--tokens-per-day", str(tokens + 1))
    return bob, tokens


@pytest.mark.acceptance
def test_the_keys_of_a_team_share_a_limit_that_outlives_a_restart(tmp_path: Path) -> None:
    with agent(tmp_path / "node", {}) as node:
        with router(tmp_path / "router") as front:
            register(front, "mini", node)
            bob, tokens = run_into_limits(front)
            new = front.must("keys", "rotate", "bob", "--grace", "1h").strip()
        with router(tmp_path / "router") as front:
            assert shown(front, "ann")["use"]["tokens_today"] == tokens
            for key in (bob, new):
                with pytest.raises(anthropic.RateLimitError, match="The team lab"):
                    claude(front, key)
            front.must("teams", "update", "lab", "--tokens-per-day", "none")
            claude(front, bob)
            chat(front, new)
            front.must("keys", "revoke", "bob")
            for key in (bob, new):
                with pytest.raises(openai.AuthenticationError):
                    chat(front, key)
            verbs = [entry["verb"] for entry in json.loads(front.must("audit", "--json"))]
            assert verbs[:2] == ["key.revoke", "team.update"] and "key.rotate" in verbs
        with router(tmp_path / "router") as front:
            rows = json.loads(front.must("usage", "--by", "team", "--json"))
            assert [(row["team"], row["requests"]) for row in rows] == [("lab", 4)]
