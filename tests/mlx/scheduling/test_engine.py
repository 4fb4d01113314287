"""Tests the begin and the end of a sequence: validation, end tokens, limits, stop strings, cancels,
faults."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from node.engine.decoding.chunking import USUAL_OUTPUT_TOKENS
from node.engine.model.load import LoadedModel
from node.engine.scheduling.batching_delay import MAX_WINDOW_S
from node.ipc.generate import GenerateRequest, SamplingParams
from node.ipc.messages import Delta, MemoryLease, Refused
from node.protocol.messages import FinishReason
from node.protocol.overflow import Overflow
from tests.mlx.driver import GREEDY, Driver, make_spec
from tests.mlx.tiny import CONTEXT_TOKENS, VOCAB_SIZE, make_tiny

pytestmark = pytest.mark.mlx

PROMPT = "Why do cats purr?"
END = 2


class Chain:
    """A network whose next token follows from the newest one by a table."""

    def __init__(self, network: Any, tokens: tuple[int, ...]) -> None:
        assert len(set(tokens)) == len(tokens)
        self.layers = network.layers
        self._network = network
        self._next = mx.array([0] * VOCAB_SIZE)
        for token, following in zip(tokens, (*tokens[1:], END), strict=True):
            self._next[token] = following
        mx.eval(self._next)

    def __call__(self, inputs: mx.array, cache: Any) -> mx.array:
        logits = self._network(inputs, cache=cache)
        chosen = self._next[inputs][..., None] == mx.arange(logits.shape[-1])
        chained: mx.array = mx.where(chosen, 10.0, 0.0) + logits * 0.0
        return chained


class Failing:
    """A network that raises in the calls that a test selects."""

    def __init__(self, network: Any) -> None:
        self.layers = network.layers
        self._network = network
        self.armed = False

    def __call__(self, inputs: mx.array, cache: Any) -> mx.array:
        if self.armed:
            self.armed = False
            raise RuntimeError("the device fell over")
        logits: mx.array = self._network(inputs, cache=cache)
        return logits


def generating(folder: Path, text: str) -> Driver:
    """An engine that answers the prompt "Q" with `text`, and then ends."""

    def change(model: LoadedModel) -> LoadedModel:
        return replace(model, network=Chain(model.network, tokens))

    with Driver(folder) as plain:
        tokens = plain.ids("Q" + text)
    return Driver(folder, change=change)


def answered_alone(engine: Driver) -> list[int]:
    """Returns the engine's output for the prompt with nothing beside it."""
    engine.alone(PROMPT)
    return engine.outputs.pop("alone")


def test_an_end_token_ends_the_sequence_and_is_no_text(tiny: Path) -> None:
    with generating(tiny, " ship left") as engine:
        row = engine.alone("Q", max_tokens=None)
        assert (row.text, row.finish) == (" ship left", FinishReason.STOP)
        assert row.token_count == len(engine.ids(" ship left"))
        assert row.usage is not None
        assert row.usage.completion_tokens == row.token_count
        assert row.usage.prompt_tokens == 1


def test_characters_torn_over_tokens_are_returned_whole(tiny: Path) -> None:
    text = " né😀"
    with generating(tiny, text) as engine:
        row = engine.alone("Q", max_tokens=None)
        assert row.text == text
        assert not any("\N{REPLACEMENT CHARACTER}" in part.text for part in row.parts)
        cut = engine.alone("Q", max_tokens=len(engine.ids(text)) - 1)
        assert cut.text == " né\N{REPLACEMENT CHARACTER}"


def test_max_tokens_ends_the_sequence(tiny: Path) -> None:
    with Driver(tiny) as engine:
        whole = engine.alone(PROMPT, max_tokens=9)
        assert (whole.token_count, whole.finish) == (9, FinishReason.LENGTH)
        first = engine.alone(PROMPT, max_tokens=1)
        assert (first.token_count, first.finish) == (1, FinishReason.LENGTH)
        assert whole.text.startswith(first.text)


def test_the_context_ends_the_sequence(tmp_path: Path) -> None:
    with Driver(make_tiny(tmp_path / "short", max_position_embeddings=64)) as engine:
        tokens = (engine.ids(PROMPT) * 64)[:61]
        for limit in (None, 100):
            row = engine.alone(tokens, max_tokens=limit)
            assert (row.token_count, row.finish) == (3, FinishReason.LENGTH)


@pytest.mark.parametrize("length", [1, 3, 8])
@pytest.mark.parametrize("start", [0, 1, 6])
def test_a_stop_string_ends_the_sequence_before_its_text(
    tiny: Path, start: int, length: int
) -> None:
    text = " ship left the quay"
    stop = text[start : start + length]
    with generating(tiny, text) as engine:
        row = engine.alone("Q", stops=("never", stop))
        assert row.text == text[: text.index(stop)]
        assert row.finish is FinishReason.STOP
        assert row.usage is not None
        # The next sequence must find the batch in order.
        assert engine.alone("Q", max_tokens=None).text == text


def test_the_first_token_is_reported_though_its_text_is_withheld(tiny: Path) -> None:
    with Driver(tiny) as engine:
        text = engine.alone("Q").text
        engine.submit("withheld", "Q", stops=(text + "!",))
        deltas: list[Delta] = []
        while not deltas:
            deltas = engine.step()
        (first,) = deltas
        assert (first.token_count, first.parts, first.finish) == (1, (), None)
        assert engine.run()["withheld"].text == text


def test_the_start_of_a_stop_string_that_is_never_completed_is_text(tiny: Path) -> None:
    with generating(tiny, " ship left") as engine:
        assert engine.alone("Q", stops=("left!",)).text == " ship left"


@pytest.mark.parametrize(
    ("tokens", "limit", "sampling", "param"),
    [
        ((), 4, GREEDY, "messages"),
        ((5,) * CONTEXT_TOKENS, 4, GREEDY, "messages"),
        ((5, VOCAB_SIZE), 4, GREEDY, "messages"),
        ((5,), 0, GREEDY, "max_tokens"),
        ((5,), 4, SamplingParams(logit_bias=((VOCAB_SIZE, 1.0),)), "logit_bias"),
        ((5,), 4, SamplingParams(logit_bias=((-1, 1.0),)), "logit_bias"),
    ],
)
def test_refuses_with_a_message_what_it_cannot_run(
    tiny: Path, tokens: tuple[int, ...], limit: int, sampling: SamplingParams, param: str
) -> None:
    with Driver(tiny) as engine:
        reply = engine.submit("a", tokens, sampling, max_tokens=limit)
        assert isinstance(reply, Refused)
        assert reply.param == param
        assert reply.reason.endswith(".")
        assert engine.engine.wait_s() is None


def test_refuses_an_id_that_is_running(tiny: Path) -> None:
    with Driver(tiny) as engine:
        engine.submit("a", PROMPT)
        assert isinstance(engine.submit("a", PROMPT), Refused)
        engine.step()
        request = GenerateRequest("a", engine.ids(PROMPT), 4)
        assert isinstance(engine.call(lambda: engine.engine.submit(request)), Refused)


def last(delta: Delta | None) -> Delta:
    assert delta is not None and delta.usage is not None
    assert delta.finish is FinishReason.CANCELLED
    return delta


def test_cancels_a_sequence_that_waits(tiny: Path) -> None:
    with Driver(tiny, spec=make_spec(tiny, max_rows=1)) as engine:
        engine.submit("a", PROMPT)
        engine.step()
        engine.submit("b", PROMPT)
        delta = last(engine.cancel("b"))
        assert delta.token_count == 0
        rows = engine.run()
        assert rows["a"].finish is FinishReason.LENGTH
        assert rows["b"].text == ""


def test_cancels_a_sequence_in_its_prefill(tiny: Path) -> None:
    with Driver(tiny, spec=make_spec(tiny, prefill_chunk_tokens=64)) as engine:
        alone = answered_alone(engine)
        engine.submit("long", engine.ids(PROMPT * 400)[:2000])
        engine.step()
        engine.submit("a", PROMPT)
        engine.step()
        usage = last(engine.cancel("long")).usage
        assert usage is not None and usage.prefill_s > 0 and usage.decode_s == 0
        engine.run()
        engine.assert_alike(engine.ids(PROMPT), engine.outputs["a"], alone)


def test_cancels_a_sequence_that_decodes(tiny: Path) -> None:
    with Driver(tiny) as engine:
        alone = answered_alone(engine)
        engine.submit("b", "A", max_tokens=None)
        engine.submit("a", PROMPT)
        engine.steps_until("b", 4)
        delta = last(engine.cancel("b"))
        assert delta.usage is not None
        assert delta.usage.completion_tokens == delta.token_count >= 4
        assert engine.cancel("b") is None
        engine.run()
        engine.assert_alike(engine.ids(PROMPT), engine.outputs["a"], alone)


def test_a_failed_step_ends_its_sequences_and_the_engine_goes_on(tiny: Path) -> None:
    failing: list[Failing] = []

    def change(model: LoadedModel) -> LoadedModel:
        failing.append(Failing(model.network))
        return replace(model, network=failing[0])

    with Driver(tiny, spec=make_spec(tiny, max_rows=2), change=change) as engine:
        alone = answered_alone(engine)
        for uid in ("a", "b", "waits"):
            engine.submit(uid, PROMPT)
        engine.steps_until("a", 3)
        failing[0].armed = True
        with pytest.raises(RuntimeError, match="fell over"):
            engine.step()
        engine.read(engine.call(lambda: engine.engine.reset("The engine failed on this step.")))
        rows = engine.run()
        for row in (rows["a"], rows["b"]):
            assert row.finish is FinishReason.ERROR
            assert row.error == "The engine failed on this step."
        assert rows["waits"].finish is FinishReason.LENGTH
        engine.assert_alike(engine.ids(PROMPT), engine.outputs["waits"], alone)


def test_a_gpu_that_fails_again_after_a_failed_step_costs_no_sequence_that_waits(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("[METAL] Command buffer execution failed.")

    with Driver(tiny, spec=make_spec(tiny, max_rows=1)) as engine:
        engine.submit("a", PROMPT)
        engine.steps_until("a", 1)
        engine.submit("waits", PROMPT)
        with monkeypatch.context() as failing:
            failing.setattr(mx, "get_cache_memory", lambda: 1 << 20)
            failing.setattr(mx, "synchronize", fail)
            engine.read(engine.call(lambda: engine.engine.reset("Failed.")))
        assert engine.rows["a"].finish is FinishReason.ERROR
        assert engine.run()["waits"].finish is FinishReason.LENGTH


def test_buffers_go_back_in_the_first_idle_step_after_a_failed_one(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleared: list[str] = []
    with Driver(tiny) as engine:
        engine.alone(PROMPT)
        engine.call(lambda: engine.engine.reset("Failed."))
        with monkeypatch.context() as watched:
            watched.setattr(mx, "get_cache_memory", lambda: 1 << 40)
            watched.setattr(mx, "clear_cache", lambda: cleared.append("cleared"))
            assert engine.call(engine.engine.wait_s) == 0.0
            engine.step()
            assert engine.call(engine.engine.wait_s) is None
    assert cleared == ["cleared"]


ROW_BYTES = 256 * 512
"""KV of one sequence of up to 256 tokens: 2 layers, keys and values of 2 heads of 16 numbers."""


def inside(engine: Driver) -> list[str]:
    return [row.uid for row in engine.engine._running.rows()]


def leased(tiny: Path, live_kv_bytes: int) -> Driver:
    lease = MemoryLease(1 << 20, live_kv_bytes, stored_kv_bytes=1 << 20)
    return Driver(tiny, spec=make_spec(tiny, lease=lease))


@pytest.mark.parametrize(
    ("live_kv_bytes", "together"), [(2 * ROW_BYTES, 2), (2 * ROW_BYTES - 1, 1), (0, 1)]
)
def test_sequences_are_admitted_while_their_longest_fits_the_lease(
    tiny: Path, live_kv_bytes: int, together: int
) -> None:
    with leased(tiny, live_kv_bytes) as engine:
        for uid in "abc":
            # 10 tokens of prompt and 20 of output, at most.
            engine.submit(uid, (5,) * 10, max_tokens=20)
        engine.step()
        assert inside(engine) == list("abc"[:together])
        rows = engine.run()
    assert {uid: rows[uid].finish is not None for uid in "abc"} == dict.fromkeys("abc", True)
    first, last = rows["a"].usage, rows["c"].usage
    assert first is not None and last is not None
    assert last.queue_s > first.prefill_s


def test_a_request_without_max_tokens_counts_as_an_answer_of_usual_length(tiny: Path) -> None:
    usual_bytes = -(-(10 + USUAL_OUTPUT_TOKENS) // 256) * ROW_BYTES
    with leased(tiny, 2 * usual_bytes) as engine:
        for uid in "abc":
            engine.submit(uid, (5,) * 10, max_tokens=None)
        engine.step()
        assert inside(engine) == ["a", "b"]


def test_a_prompt_that_never_fits_in_memory_is_refused(tiny: Path) -> None:
    lease = MemoryLease(1 << 20, live_kv_bytes=ROW_BYTES, stored_kv_bytes=ROW_BYTES)
    with Driver(tiny, spec=make_spec(tiny, lease=lease)) as engine:
        refused = engine.submit("a", (5,) * 600)
        assert isinstance(refused, Refused) and "--memory-limit" in refused.reason
        assert refused.overflow == Overflow(600, 512)
        assert not isinstance(engine.submit("c", (5,) * 100), Refused)
        refused = engine.submit("d", (5,) * CONTEXT_TOKENS)
        assert isinstance(refused, Refused)
        assert refused.overflow == Overflow(CONTEXT_TOKENS, CONTEXT_TOKENS)
        engine.submit("b", (5,) * 500, max_tokens=None)
        row = engine.run()["b"]
        # Its own KV ends the sequence where the memory ends.
        assert (row.token_count, row.finish) == (12, FinishReason.LENGTH)


def test_a_cancel_removes_a_prompt_between_two_chunks(tiny: Path) -> None:
    prompt = (5,) * (CONTEXT_TOKENS - 100)
    with Driver(tiny, spec=make_spec(tiny, prefill_chunk_tokens=64)) as engine:
        engine.submit("a", prompt, max_tokens=2)
        engine.step()
        engine.step()
        assert inside(engine) == ["a"] and engine.rows["a"].token_count == 0
        last = engine.cancel("a")
        # At once, without one more step, and nothing of it is computed after.
        assert last is not None and last.finish is FinishReason.CANCELLED
        assert inside(engine) == [] and engine.call(engine.engine.wait_s) != 0


def test_an_idle_engine_waits_a_moment_for_requests_that_arrive_together(tiny: Path) -> None:
    with Driver(tiny) as engine:
        engine.submit("a", PROMPT)
        assert engine.engine.wait_s() == 0, "nothing is known of its speed"
        engine.run()
        engine.engine._costs.batching_delay.learn(1, 1.0)
        engine.submit("b", "A small ship left the harbour at dawn.")
        wait_s = engine.engine.wait_s()
        assert wait_s is not None and 0 < wait_s <= MAX_WINDOW_S
        engine.step()
        engine.submit("c", PROMPT)
        assert engine.engine.wait_s() == 0, "an engine that decodes waits for nobody"
