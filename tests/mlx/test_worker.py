"""The engine process around a real model."""

import signal
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from node.ipc.generate import GenerateRequest, SamplingParams
from node.ipc.messages import (
    Accepted,
    Cancel,
    EngineSpec,
    Frame,
    Loaded,
    LoadFailed,
    Loading,
    Marked,
    MemoryLease,
    Submit,
)
from node.protocol.messages import FinishReason
from tests.mlx.tiny import CONTEXT_TOKENS, VOCAB_SIZE
from tests.node.engine.process import EngineProcess

pytestmark = [pytest.mark.mlx, pytest.mark.usefixtures("link_bytes")]

LONG = CONTEXT_TOKENS - 100


def spec(folder: Path) -> EngineSpec:
    # A lease of nothing is none: the engine takes what it needs.
    return EngineSpec("text", "tiny", str(folder), max_rows=4, lease=MemoryLease(0, 0, 0))


def submit(
    uid: str, prompt_tokens: int = 5, sampling: SamplingParams | None = None, max_tokens: int = 8
) -> Submit:
    tokens = tuple(10 + index % 300 for index in range(prompt_tokens))
    return Submit(
        GenerateRequest(uid, tokens, max_tokens, sampling or SamplingParams(temperature=0.0))
    )


def test_loads_and_decodes_sequences(tiny: Path) -> None:
    with EngineProcess(spec(tiny)) as engine:
        assert engine.next(Loading).fraction < 1.0
        loaded = engine.next(Loaded)
        assert loaded.vocab_size == VOCAB_SIZE
        assert loaded.context_tokens == CONTEXT_TOKENS
        assert 0 < loaded.weight_bytes <= (tiny / "model.safetensors").stat().st_size
        engine.send(*(submit(f"row {length}", length) for length in (1, 2, 30, 600)))
        assert engine.next(Accepted) == Accepted("row 1", 1, 0)
        rows = engine.rows(4)
        assert {last.token_count for _, last in rows.values()} == {8}
        engine.process.send_signal(signal.SIGINT)
        engine.send(submit("again", 30))
        assert engine.rows(1)["again"][0] == rows["row 30"][0]
        assert engine.shut_down() == (0, "")


def test_sends_one_frame_for_the_sequences_of_one_step(tiny: Path) -> None:
    with EngineProcess(spec(tiny)) as engine:
        engine.next(Loaded)
        # Long enough that all four are there before the first token of one.
        engine.send(*(submit(uid, 700, max_tokens=20) for uid in "abcd"))
        sizes: list[int] = []
        while not sizes or sizes[-1] < 4:
            sizes.append(len(engine.next(Frame).deltas))
        assert max(sizes) == 4


def test_marks_a_cancel_at_once_in_a_long_prefill_and_dies_in_one(tiny: Path) -> None:
    with EngineProcess(spec(tiny)) as engine:
        engine.next(Loaded)
        engine.send(*(submit(uid, LONG) for uid in "abcd"))
        for _ in range(4):
            engine.next(Accepted)
        engine.send(Cancel("b"))
        # Before it reports that the sequence has ended.
        engine.next(Marked)
        _, last = engine.rows(1)["b"]
        assert last.finish is FinishReason.CANCELLED
        assert last.usage is not None and last.usage.decode_s == 0
        # All four prompts would take three times as long.
        assert engine.hang_up() < 0.25


def test_a_cancelled_sequence_is_gone_after_one_more_chunk(tiny: Path) -> None:
    with EngineProcess(spec(tiny)) as engine:
        engine.next(Loaded)
        # A decoding sequence reports each step: beside it, every step has one chunk of the prompt.
        engine.send(submit("clock", 5, max_tokens=2000))
        engine.next(Frame)
        engine.send(submit("long", LONG))
        engine.next(Accepted)
        engine.send(Cancel("long"))
        engine.next(Marked)
        steps = 0
        while all(delta.uid != "long" for delta in engine.next(Frame).deltas):
            steps += 1
        # The step that had ended as the cancel arrived, and the one that began before it was taken.
        assert steps <= 2, "a whole prefill has eight"


def test_a_new_temperature_compiles_nothing(tiny: Path, tmp_path: Path) -> None:
    def compiled() -> set[Path]:
        return set((tmp_path / "mlx").rglob("*.so"))

    with EngineProcess(spec(tiny), TMPDIR=str(tmp_path)) as engine:
        engine.send(submit("first", sampling=SamplingParams(temperature=0.5, top_k=5, top_p=0.5)))
        engine.rows(1)
        before = compiled()
        for index in range(4):
            value = 0.6 + index / 10
            sampling = SamplingParams(temperature=value, top_k=index, top_p=value, min_p=value / 9)
            engine.send(submit(f"{index}", sampling=sampling))
            engine.rows(1)
        assert compiled() == before


def test_every_exit_is_clean(tiny: Path) -> None:
    engines = [EngineProcess(spec(tiny)) for _ in range(10)]
    for engine in engines:
        with engine:
            engine.send(submit("a"), submit("b", sampling=SamplingParams(temperature=1.0)))
            engine.rows(2)
            assert engine.shut_down() == (0, "")


def test_a_folder_without_weights_is_a_failed_load_and_a_clean_exit(
    tiny: Path, tmp_path: Path
) -> None:
    for path in tiny.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with EngineProcess(spec(tmp_path)) as engine:
        assert "has no model*.safetensors" in engine.next(LoadFailed).reason
        assert engine.end() == (1, "")


def test_a_torn_tokenizer_is_a_failed_load(tiny: Path, tmp_path: Path) -> None:
    for path in tiny.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    whole = Tokenizer.from_file(str(tiny / "tokenizer.json")).to_str()
    (tmp_path / "tokenizer.json").write_text(whole[: len(whole) // 2])
    with EngineProcess(spec(tmp_path)) as engine:
        assert engine.next(LoadFailed).reason.startswith("The engine failed to load tiny: ")
        assert engine.end()[0] == 1
