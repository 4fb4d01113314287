"""Sequences whose KV is quantized while they run: in a batch each gives what it gives alone."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import BatchKVCache, KVCache

from node.engine.base import LoadError
from node.engine.kv.cache_tree import flatten
from node.engine.kv.codec import PlainCodec
from node.engine.kv.quantized_kv import BatchQuantizedKVCache, LiveKVCache, check_live_bits
from tests.mlx.caching import Subject, prompt, subjects
from tests.mlx.likeness import NEAR_QUANTISED

pytestmark = pytest.mark.mlx

LENGTHS = (1, 7, 33, 257)
ANSWER = 12

Make = Callable[..., Subject]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    return subjects(tmp_path_factory.mktemp("kinds"))


@pytest.fixture(params=[4, 8])
def llama(request: pytest.FixtureRequest, make: Make) -> Subject:
    return make("llama", live_bits=request.param)


def prompts() -> list[list[int]]:
    return [prompt(length, seed) for seed, length in enumerate(LENGTHS)]


def assert_alone(llama: Subject, rows: list[list[int]], answers: list[list[int]]) -> None:
    """That each answer is the one that its row gives alone."""
    for tokens, answer in zip(rows, answers, strict=True):
        alone = llama.answer(tokens, len(answer))
        llama.assert_alike(tokens, alone, answer, near=NEAR_QUANTISED)


def test_a_row_of_a_batch_gives_what_it_gives_alone(llama: Subject) -> None:
    batch, logits = llama.batch(prompts())
    assert all(type(leaf) is BatchQuantizedKVCache for leaf in flatten(batch))
    assert_alone(llama, prompts(), llama.decode(batch, logits, ANSWER))


def test_prompts_prefilled_together_give_what_they_give_alone(llama: Subject) -> None:
    batch = llama.layout.merge([llama.layout.new_caches() for _ in LENGTHS])
    longest = max(LENGTHS)
    padding = [longest - length for length in LENGTHS]
    for leaf in flatten(batch):
        leaf.prepare(lengths=list(LENGTHS), right_padding=padding)
    padded = [tokens + [0] * count for tokens, count in zip(prompts(), padding, strict=True)]
    # All but each prompt's last token count; that one is fed again, after the padding moved.
    llama.feed(batch, padded)
    for leaf in flatten(batch):
        leaf.finalize()
        leaf.trim(1)
    logits = llama.feed(batch, [tokens[-1:] for tokens in prompts()])
    assert_alone(llama, prompts(), llama.decode(batch, logits, ANSWER))


def test_rows_join_and_leave(llama: Subject) -> None:
    batch, logits = llama.batch(prompts()[:2])
    joining, later = llama.batch(prompts()[2:])
    answers = llama.decode(batch, logits, ANSWER) + llama.decode(joining, later, 1)
    histories = [tokens + answer for tokens, answer in zip(prompts(), answers, strict=True)]
    for leaf, other in zip(flatten(batch), flatten(joining), strict=True):
        leaf.extend(other)
    for stay in ([0, 1, 2, 3], [2, 0, 1], [1]):
        for leaf in flatten(batch):
            leaf.filter(stay)
        histories = [[*histories[row], 7] for row in stay]
        answers = llama.decode(batch, llama.feed(batch, [[7]] * len(stay)), 3)
        assert_alone(llama, histories, answers)
        histories = [h + answer for h, answer in zip(histories, answers, strict=True)]
    assert flatten(batch)[0].left_padding.tolist() == [0]


def test_filling_an_empty_batch_is_the_same_as_merging(llama: Subject) -> None:
    batch, logits = llama.batch(prompts())
    empty = llama.layout.merge([llama.layout.new_caches()])
    for leaf, other in zip(flatten(empty), flatten(batch), strict=True):
        assert leaf.nbytes == 0
        leaf.extend(other)
        leaf.filter([1, 2, 3, 4])
    assert_alone(llama, prompts(), llama.decode(empty, logits, 3))


def test_empty_rows_merge_with_full_ones(llama: Subject) -> None:
    full, empty = llama.layout.new_caches(), llama.layout.new_caches()
    llama.feed(full, [prompt(9)])
    batch = llama.layout.merge([empty, full])
    logits = llama.feed(batch, [[5], [7]])
    assert_alone(llama, [[5], prompt(9) + [7]], llama.decode(batch, logits, ANSWER))


def test_a_row_that_is_extracted_continues(llama: Subject) -> None:
    batch, logits = llama.batch(prompts())
    answers = llama.decode(batch, logits, ANSWER)
    for row, tokens in enumerate(prompts()):
        alone = [leaf.extract(row) for leaf in batch]
        assert all(type(leaf) is LiveKVCache for leaf in flatten(alone))
        assert {leaf.offset for leaf in flatten(alone)} == {len(tokens) + ANSWER}
        assert_alone(llama, [tokens + answers[row] + [7]], [llama.answer([7], 3, alone)])


def test_a_captured_row_continues(llama: Subject) -> None:
    layout = llama.layout
    batch, logits = llama.batch(prompts())
    answers = llama.decode(batch, logits, ANSWER)
    for row, tokens in enumerate(prompts()):
        length = len(tokens) + ANSWER
        span = layout.capture_row(batch, row, length, 0, length)
        assert span.nbytes == length * layout.span_bytes_per_token
        span = layout.rebuild_span(span.tensors())
        again = layout.restore([(span, 0, length)], None, length)
        assert_alone(llama, [tokens + answers[row] + [7]], [llama.answer([7], 3, again)])


# MLX may give out each of the 12 buffers two pages larger than requested.
SURPLUS_BYTES = 12 * 8192


def test_bytes_are_what_mlx_reports(llama: Subject) -> None:
    before = mx.get_active_memory()
    batch, _ = llama.batch([prompt(1000), prompt(900), prompt(300)])
    nbytes = sum(leaf.nbytes for leaf in batch)
    assert mx.get_active_memory() - before == pytest.approx(nbytes, rel=0.05, abs=SURPLUS_BYTES)
    del batch
    caches = llama.layout.new_caches()
    assert [leaf.nbytes for leaf in caches] == [0, 0]
    llama.feed(caches, [prompt(1000)])
    nbytes = sum(leaf.nbytes for leaf in caches)
    assert nbytes == llama.layout.live_bytes(1000)
    assert mx.get_active_memory() - before == pytest.approx(nbytes, rel=0.05, abs=SURPLUS_BYTES)


def test_the_state_contains_all_that_there_is(llama: Subject) -> None:
    batch, _ = llama.batch(prompts())
    mx.eval([leaf.state for leaf in batch])
    keys, values, offset, padding, end = batch[0].state
    assert (len(keys), len(values), end) == (3, 3, max(LENGTHS))
    assert offset.tolist() == list(LENGTHS)
    assert padding.tolist() == [end - length for length in LENGTHS]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("gpt_oss", "another kind of cache, RotatingKVCache"),
        ("qwen3_5", "another kind of cache, ArraysCache"),
        ("deepseek_v3", "cannot run with quantized KV: 'tuple' object has no attribute"),
        ("deepseek_v32", "cannot run with quantized KV"),
    ],
)
def test_other_models_are_refused_with_the_reason(make: Make, kind: str, reason: str) -> None:
    with pytest.raises(LoadError, match=reason):
        make(kind, live_bits=8)


def test_other_numbers_of_bits_are_refused(make: Make) -> None:
    with pytest.raises(LoadError, match="to 4 or 8 bits, not to 5"):
        check_live_bits(make("llama").network, 5)


def test_attention_sinks_are_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    network = make("gpt_oss").network
    plain: Any = KVCache
    monkeypatch.setattr(
        type(network), "make_cache", lambda network: [plain() for _ in network.layers]
    )
    with pytest.raises(LoadError, match="does not support attention sinks"):
        check_live_bits(network, 8)


def test_a_head_that_no_group_divides_is_refused(tiny: Any) -> None:
    with pytest.raises(LoadError, match="the width of a head is 16"):
        Subject.of(tiny, live_bits=8, codec=PlainCodec())


class Misreading:
    """A model that takes the packed keys for something else."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.make_cache = network.make_cache

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        logits: mx.array = self._network(tokens, cache=cache)
        return logits[..., ::-1] if type(cache[0]) is LiveKVCache else logits


def test_a_model_that_reads_quantized_keys_wrongly_is_refused(make: Make) -> None:
    network = make("llama").network
    assert check_live_bits(network, 8) == (32, 32)
    with pytest.raises(LoadError, match=r"logits differ by \d+% of their spread"):
        check_live_bits(Misreading(network), 8)


def test_left_padding_is_that_of_a_plain_batch() -> None:
    plain: Any = BatchKVCache([2, 0])
    quantized = BatchQuantizedKVCache([2, 0], 32, 8)
    new = mx.random.normal((2, 1, 4, 32))
    plain.update_and_fetch(new, new)
    (packed, scales, biases), _ = quantized.update_and_fetch(new, new)
    keys = mx.dequantize(packed, scales, biases, group_size=32, bits=8)
    assert float(mx.abs(keys - new).max()) < 0.02
    assert quantized.offset.tolist() == plain.offset.tolist()
    assert mx.array_equal(quantized.make_mask(1), plain.make_mask(1))
