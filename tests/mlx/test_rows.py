"""Rows that share a batch: none may feel the others."""

from pathlib import Path

import pytest

from node.protocol.messages import FinishReason
from node.types import Accepted, SamplingParams
from tests.mlx.driver import GREEDY, Driver
from tests.mlx.tiny import make_tiny

pytestmark = pytest.mark.mlx

PROMPTS = {
    "a": "A",
    "b": "The baker said north, the smith",
    "c": "Why do cats purr? " * 12,
    "d": "def area(width, height):\n    return " * 5,
}
HOT = SamplingParams(temperature=2.0, seed=3)
STRANGE = {
    "b": HOT,
    "c": SamplingParams(temperature=0.0, repetition_penalty=1.5, logit_bias=((300, 90.0),)),
    "d": SamplingParams(
        temperature=1.5, top_k=5, top_p=0.9, min_p=0.01, frequency_penalty=1.0, seed=5
    ),
}


def test_a_row_in_a_batch_gives_the_text_of_that_row_alone(tiny: Path) -> None:
    with Driver(tiny) as engine:
        alone = {uid: engine.alone(prompt).text for uid, prompt in PROMPTS.items()}
        for uid, prompt in PROMPTS.items():
            engine.submit(uid, prompt)
        rows = engine.run()
        assert {uid: row.text for uid, row in rows.items()} == alone
        assert len(set(alone.values())) == len(PROMPTS)
        assert {row.finish for row in rows.values()} == {FinishReason.LENGTH}


def test_a_real_model_answers_alike_alone_and_in_a_batch(smollm2: Path) -> None:
    def chat(text: str) -> str:
        return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"

    prompts = {
        "paris": chat("What is the capital of France?"),
        "sum": chat("What is 2 + 2?"),
        "long": chat("Repeat the word fish. " * 12),
        "plain": "Once upon a time",
    }
    with Driver(smollm2) as engine:
        alone = {uid: engine.alone(p, max_tokens=8).text for uid, p in prompts.items()}
        for uid, prompt in prompts.items():
            engine.submit(uid, prompt, max_tokens=8)
        rows = engine.run()
        assert {uid: row.text for uid, row in rows.items()} == alone
        assert rows["paris"].text == "The capital of France is Paris."
        assert rows["paris"].finish is FinishReason.STOP
        assert rows["plain"].text.startswith(", ")


def test_settings_of_one_row_never_touch_another(tiny: Path) -> None:
    with Driver(tiny) as engine:
        alone = engine.alone(PROMPTS["a"]).text
        for uid, prompt in PROMPTS.items():
            engine.submit(uid, prompt, STRANGE.get(uid, GREEDY))
        assert engine.run()["a"].text == alone


def test_a_row_with_penalties_and_sampling_is_the_same_alone(tiny: Path) -> None:
    with Driver(tiny) as engine:
        alone = {uid: engine.alone(PROMPTS[uid], params).text for uid, params in STRANGE.items()}
        for uid, prompt in PROMPTS.items():
            engine.submit(uid, prompt, STRANGE.get(uid, GREEDY))
        rows = engine.run()
        assert {uid: rows[uid].text for uid in STRANGE} == alone


def test_rows_join_and_leave_a_running_batch(tiny: Path) -> None:
    with Driver(tiny, max_rows=3) as engine:
        lengths = {"a": 40, "b": 6, "c": 17, "d": 25}
        alone = {uid: engine.alone(PROMPTS[uid], max_tokens=lengths[uid]).text for uid in lengths}
        engine.submit("a", PROMPTS["a"], max_tokens=lengths["a"])
        engine.steps_until("a", 3)
        for uid in ("b", "c", "d"):
            engine.submit(uid, PROMPTS[uid], max_tokens=lengths[uid])
        engine.steps_until("b", 6)
        assert engine.rows["a"].finish is None
        rows = engine.run()
        assert {uid: row.text for uid, row in rows.items()} == alone
        assert {uid: row.token_count for uid, row in rows.items()} == lengths


def test_a_row_beyond_max_rows_waits_and_says_so(tiny: Path) -> None:
    with Driver(tiny, max_rows=1) as engine:
        engine.submit("a", PROMPTS["a"])
        engine.submit("b", PROMPTS["b"])
        rows = engine.run()
        first, second = rows["a"].usage, rows["b"].usage
        assert first is not None and second is not None
        assert second.queue_s > first.prefill_s + first.decode_s > first.queue_s


@pytest.mark.parametrize("width", [1, 3])
def test_a_seed_gives_the_same_text_at_any_batch_size(tiny: Path, width: int) -> None:
    with Driver(tiny) as engine:
        alone = engine.alone(PROMPTS["b"], HOT).text
        for index in range(width):
            engine.submit(f"other {index}", PROMPTS["c"], SamplingParams(temperature=1.0))
        engine.step()
        engine.submit("b", PROMPTS["b"], HOT)
        assert engine.run()["b"].text == alone


def test_two_requests_without_a_seed_differ(tiny: Path) -> None:
    endless = SamplingParams(temperature=1.5, logit_bias=((0, -100.0), (2, -100.0)))
    with Driver(tiny) as engine:
        for uid in ("a", "b"):
            engine.submit(uid, PROMPTS["b"], endless)
        rows = engine.run()
        assert rows["a"].text != rows["b"].text


def test_a_prompt_longer_than_a_prefill_chunk_is_the_same_in_a_batch(tiny: Path) -> None:
    with Driver(tiny) as engine:
        long = engine.ids("Nobody is quite sure. " * 200)[:1100]
        alone = engine.alone(long).text
        engine.submit("a", PROMPTS["a"], max_tokens=40)
        engine.steps_until("a", 2)
        for uid, length in {"b": 1100, "c": 513, "d": 514}.items():
            assert isinstance(engine.submit(uid, long[:length]), Accepted)
        assert engine.run()["b"].text == alone


def test_a_model_with_scaled_rope_runs_in_the_thread_that_loaded_it(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    with Driver(make_tiny(tmp_path / "scaled", rope_scaling=scaling)) as engine:
        assert engine.alone(PROMPTS["b"]).token_count == 24
