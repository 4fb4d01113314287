"""The sampling of a body, in a real engine. Each of these was a fault of another server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.dialects.chat.body import read_chat
from node.ipc.generate import SamplingParams
from tests.mlx.driver import Driver, prompt

pytestmark = pytest.mark.mlx

PROMPT = prompt(20, seed=1)


@pytest.fixture
def engine(tiny: Path) -> Iterator[Driver]:
    with Driver(tiny) as driver:
        yield driver


def sampling(**fields: Any) -> SamplingParams:
    """Returns the sampling that a chat's body with these fields requests."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return read_chat(json.dumps(body).encode()).request.sampling


def test_answers_without_a_seed_differ_and_those_with_one_do_not(engine: Driver) -> None:
    requests = {
        "a": sampling(),
        "b": sampling(seed=None),
        "c": sampling(seed=7),
        "d": sampling(seed=7),
    }
    for uid, params in requests.items():
        engine.submit(uid, PROMPT, params)
    engine.run()
    outputs = engine.outputs
    assert outputs["a"] != outputs["b"]
    engine.assert_alike(PROMPT, outputs["c"], outputs["d"], requests["c"])
    assert outputs["c"] != outputs["a"]


def test_each_request_is_sampled_by_its_own_settings_beside_others(engine: Driver) -> None:
    for uid, temperature in (("hot", 2.0), ("cold", 0), ("warm", 1.0), ("late", 0)):
        engine.submit(uid, PROMPT, sampling(temperature=temperature, seed=3))
    engine.run()
    for greedy in ("cold", "late"):
        engine.assert_greedy(greedy, PROMPT, 24)
    assert engine.outputs["hot"] != engine.outputs["warm"] != engine.outputs["cold"]


def test_requests_of_unlike_temperatures_run_together(engine: Driver) -> None:
    engine.submit("first", PROMPT, sampling(temperature=0), max_tokens=200)
    engine.steps_until("first", 5)
    engine.submit("second", PROMPT, sampling(temperature=1.5, top_k=9, seed=3), max_tokens=5)
    engine.steps_until("second", 5)
    assert engine.rows["first"].token_count < 200
    assert engine.rows["first"].finish is None


def test_the_first_token_too_is_picked_by_the_requests_settings(engine: Driver) -> None:
    wanted = 77
    # Beside a sequence that runs already, whose settings are others.
    engine.submit("running", PROMPT, sampling(temperature=1.0, seed=3), max_tokens=100)
    engine.steps_until("running", 3)
    engine.submit("new", PROMPT, sampling(temperature=0, logit_bias={wanted: 100}), max_tokens=3)
    while engine.rows["new"].finish is None:
        engine.step()
    assert engine.outputs["new"][:3] == [wanted] * 3
    assert wanted not in engine.bare(PROMPT, 3)
