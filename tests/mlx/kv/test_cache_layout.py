"""Caches of every kind of model: what is captured and restored continues as if nothing had been
interrupted, and owns the memory that it reports."""

import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import cache as mlx_lm_cache

from node.engine.base import LoadError
from node.engine.cache.disk.format import decode, encode
from node.engine.cache.parts import Tensor, Tensors
from node.engine.kv.cache_layout import CacheLayout
from node.engine.kv.cache_tree import Caches, flatten
from node.engine.kv.codec import AffineCodec, PlainCodec
from node.engine.kv.spans import (
    RUN_TOKENS,
    KvSpan,
    LayerSnapshot,
    array_memory,
    array_of,
    tensor_of,
)
from tests.mlx.caching import Subject, prompt, subjects
from tests.mlx.kinds import KINDS, WINDOW_TOKENS

pytestmark = pytest.mark.mlx

CUTS = (1, WINDOW_TOKENS - 1, WINDOW_TOKENS, WINDOW_TOKENS + 1)
ANSWER = 10
KV_ONLY = {"llama", "smollm3", "qwen3_moe", "deepseek_v3", "deepseek_v32"}
NEEDS_SNAPSHOT = set(KINDS) - KV_ONLY

Make = Callable[..., Subject]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    return subjects(tmp_path_factory.mktemp("kinds"))


@pytest.fixture(params=KINDS)
def subject(request: pytest.FixtureRequest, make: Make) -> Subject:
    return make(request.param)


@pytest.fixture
def llama(make: Make) -> Subject:
    return make("llama")


@pytest.fixture
def active_bytes() -> Iterator[Callable[[], int]]:
    """The bytes of MLX beyond those at the start. It keeps no free buffers meanwhile: one may
    be larger than what it is given out for."""
    gc.collect()
    limit = mx.set_cache_limit(0)
    mx.clear_cache()
    start = mx.get_active_memory()
    yield lambda: mx.get_active_memory() - start
    mx.set_cache_limit(limit)


def keep(subject: Subject, caches: Caches, tokens: int) -> tuple[KvSpan, LayerSnapshot | None]:
    layout = subject.layout
    snapshot = layout.snapshot(caches) if layout.needs_snapshot else None
    return layout.capture(caches, 0, tokens), snapshot


def on_file(tensors: Tensors) -> Tensors:
    """The same tensors as the disk tier reads them: a whole file in the memory of one array."""
    layout = encode(tensors)
    memory = array_memory(layout.nbytes)
    memory[:] = b"".join(layout.views)
    return decode(memory)


def test_reports_which_kinds_need_snapshots(make: Make) -> None:
    assert {kind for kind in KINDS if make(kind).layout.needs_snapshot} == NEEDS_SNAPSHOT


@pytest.mark.parametrize("cut", CUTS)
def test_a_restored_sequence_continues_with_the_same_tokens(subject: Subject, cut: int) -> None:
    tokens = prompt(cut + 9)
    expected = subject.answer(tokens, ANSWER)
    caches = subject.layout.new_caches()
    subject.feed(caches, [tokens[:cut]])
    span, snapshot = keep(subject, caches, cut)
    # The sequence goes on, which must not change what was kept.
    subject.answer(tokens[cut:], ANSWER, caches)
    for _ in range(2):
        again = subject.layout.restore([(span, 0, cut)], snapshot, cut)
        subject.assert_alike(tokens, expected, subject.answer(tokens[cut:], ANSWER, again))


def test_a_sequence_restored_while_it_decodes_continues_with_the_same_tokens(
    subject: Subject,
) -> None:
    tokens = prompt(WINDOW_TOKENS - 3)
    expected = subject.answer(tokens, 2 * ANSWER)
    caches = subject.layout.new_caches()
    subject.answer(tokens, ANSWER - 1, caches)
    length = len(tokens) + ANSWER - 1
    span, snapshot = keep(subject, caches, length)
    again = subject.layout.restore([(span, 0, length)], snapshot, length)
    rest = subject.answer(expected[ANSWER - 1 : ANSWER], ANSWER, again)
    subject.assert_alike([*tokens, *expected[:ANSWER]], expected[ANSWER:], rest)


def test_what_is_read_from_a_file_continues_with_the_same_tokens(subject: Subject) -> None:
    layout, tokens = subject.layout, prompt(50)
    expected = subject.answer(tokens, ANSWER)
    caches = layout.new_caches()
    subject.feed(caches, [tokens[:41]])
    span, snapshot = keep(subject, caches, 41)
    read = layout.rebuild_span(on_file(span.tensors()))
    assert (read.tokens, read.nbytes) == (span.tokens, span.nbytes)
    if snapshot is not None:
        nbytes = snapshot.nbytes
        snapshot = layout.rebuild_snapshot(on_file(snapshot.tensors()))
        assert snapshot.nbytes == nbytes
    again = layout.restore([(read, 0, 41)], snapshot, 41)
    subject.assert_alike(tokens, expected, subject.answer(tokens[41:], ANSWER, again))


def test_what_is_read_from_a_file_is_not_copied(
    llama: Subject, active_bytes: Callable[[], int]
) -> None:
    caches = llama.layout.new_caches()
    llama.feed(caches, [prompt(500)])
    tensors = on_file(llama.layout.capture(caches, 0, 500).tensors())
    before = active_bytes()
    span = llama.layout.rebuild_span(tensors)
    assert active_bytes() == before
    assert span.tokens == 500


def test_a_part_of_what_is_read_from_a_file_keeps_no_more_than_itself(
    llama: Subject, active_bytes: Callable[[], int]
) -> None:
    before = active_bytes()
    caches = llama.layout.new_caches()
    llama.feed(caches, [prompt(RUN_TOKENS + 500)])
    span = llama.layout.capture(caches, 0, RUN_TOKENS + 500)
    tensors: Tensors = on_file(span.tensors())
    del caches, span
    head, tail = llama.layout.rebuild_span(tensors).split(RUN_TOKENS)
    del tensors, tail
    gc.collect()
    assert active_bytes() - before == head.nbytes


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32, mx.uint8, mx.int32])
def test_an_array_lies_where_its_bytes_do(dtype: mx.Dtype) -> None:
    array = mx.arange(60).astype(dtype).reshape(3, 20)
    tensors = on_file({"first": tensor_of(mx.arange(7)), "it": tensor_of(array)})
    found = array_of(tensors["it"])
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert mx.array_equal(found, array)


def test_a_row_of_a_batch_gives_the_same_as_alone(subject: Subject) -> None:
    layout = subject.layout
    prompts = [prompt(length, seed) for seed, length in enumerate((WINDOW_TOKENS + 9, 5, 21))]
    batch, logits = subject.batch(prompts)
    answers = subject.decode(batch, logits, ANSWER)
    for row, tokens in enumerate(prompts):
        length = len(tokens) + ANSWER
        span = layout.capture_row(batch, row, length, 0, length)
        snapshot = layout.snapshot_row(batch, row) if layout.needs_snapshot else None
        again = layout.restore([(span, 0, length)], snapshot, length)
        rest = subject.answer([7], ANSWER, again)
        history = [*tokens, *answers[row], 7]
        subject.assert_alike(history, subject.answer(history, ANSWER), rest)
        leaves = flatten(again)
        assert all(leaves[number].offset >= length for number, _ in layout._kv_leaves())


def test_a_batch_does_not_change_what_was_captured_from_it(subject: Subject) -> None:
    layout, tokens = subject.layout, prompt(40)
    batch, logits = subject.batch([tokens, prompt(9)])
    span = layout.capture_row(batch, 0, 40, 0, 40)
    snapshot = layout.snapshot_row(batch, 0) if layout.needs_snapshot else None
    before = [on_file(part.tensors()) for part in (span, snapshot) if part is not None]
    subject.decode(batch, logits, 40)
    after = [on_file(part.tensors()) for part in (span, snapshot) if part is not None]
    assert before == after


def test_a_restored_row_alone_in_a_batch_leaves_its_span_as_it_is(subject: Subject) -> None:
    layout, tokens = subject.layout, prompt(40)
    caches = layout.new_caches()
    subject.feed(caches, [tokens])
    span, snapshot = keep(subject, caches, 40)
    before = [on_file(part.tensors()) for part in (span, snapshot) if part is not None]
    batch = layout.merge([layout.restore([(span, 0, 40)], snapshot, 40)])
    logits = subject.feed(batch, [[7]])
    alone = subject.answer([7], 40, caches)
    subject.assert_alike([*tokens, 7], alone, subject.decode(batch, logits, 40)[0])
    assert before == [on_file(part.tensors()) for part in (span, snapshot) if part is not None]


def test_spans_are_cut_and_joined_at_any_token(make: Make) -> None:
    for codec in (PlainCodec(), AffineCodec(8)):
        subject = make("llama", codec=codec)
        length = 2 * RUN_TOKENS + 30
        caches = subject.layout.new_caches()
        for begin in range(0, length, 512):
            subject.feed(caches, [prompt(length)[begin : begin + 512]])
        whole = subject.layout.capture(caches, 0, length)
        (expected,) = (flatten(subject.layout.restore([(whole, 0, length)], None, length))[:1],)
        for at in (1, RUN_TOKENS - 1, RUN_TOKENS, RUN_TOKENS + 1, length - 1):
            head, tail = whole.split(at)
            assert (head.tokens, tail.tokens) == (at, length - at)
            assert head.nbytes + tail.nbytes == whole.nbytes
            pieces = [(head, 0, at), (tail, 0, 5), (whole, at + 5, length)]
            pieces = [piece for piece in pieces if piece[1] < piece[2] <= piece[0].tokens]
            restored_tokens = sum(end - begin for _, begin, end in pieces)
            restored = flatten(subject.layout.restore(pieces, None, restored_tokens))[0]
            assert mx.array_equal(
                restored.keys[:, :, :restored_tokens], expected[0].keys[:, :, :restored_tokens]
            )
            assert mx.array_equal(
                restored.values[:, :, :restored_tokens], expected[0].values[:, :, :restored_tokens]
            )


def test_a_captured_span_keeps_nothing_else_alive(
    make: Make, active_bytes: Callable[[], int]
) -> None:
    # One KV head: its tokens lie side by side, where MLX would rather share than copy.
    subject = make("lfm2")
    before = active_bytes()
    caches = subject.layout.new_caches()
    for _ in range(8):
        subject.feed(caches, [prompt(256)])
    span = subject.layout.capture(caches, 100, 110)
    whole = subject.layout.capture(caches, 0, 2048)
    snapshot = subject.layout.snapshot(caches)
    del caches
    captured_bytes = span.nbytes + whole.nbytes + snapshot.nbytes
    assert active_bytes() - before == pytest.approx(captured_bytes, rel=0.01)
    del whole, snapshot
    assert active_bytes() - before == pytest.approx(span.nbytes, abs=200)
    first, second = span.split(4)
    del span, first
    assert active_bytes() - before == pytest.approx(second.nbytes, abs=200)
    del second
    assert active_bytes() == before


def about(nbytes: int) -> Any:
    """Within 5 %, or a few small buffers: MLX gives out some that are larger than requested, and
    some models' states are views of slightly more."""
    return pytest.approx(nbytes, rel=0.05, abs=8192)


def test_bytes_are_what_mlx_reports(subject: Subject, active_bytes: Callable[[], int]) -> None:
    layout, before = subject.layout, active_bytes()
    caches = layout.new_caches()
    for _ in range(4):
        subject.feed(caches, [prompt(512)])
    subject.feed(caches, [[7]])
    # What deepseek_v32 calls the values of its index is one zero.
    unused = sum(
        leaf.values.nbytes for leaf in flatten(caches) if is_broadcast(getattr(leaf, "values", 0))
    )
    assert active_bytes() - before == about(layout.live_bytes(2049) - unused)
    live = active_bytes()
    span = layout.capture(caches, 0, 2049)
    assert span.nbytes == 2049 * layout.span_bytes_per_token
    assert active_bytes() - live == about(span.nbytes)
    live = active_bytes()
    snapshot = layout.snapshot(caches)
    assert snapshot.nbytes == layout.snapshot_bytes
    assert active_bytes() - live == about(snapshot.nbytes)
    del caches
    live = active_bytes()
    again = layout.restore([(span, 0, 2049)], snapshot, 2049)
    assert active_bytes() - live == about(layout.live_bytes(2049) - snapshot.nbytes)
    subject.feed(again, [[7]])
    assert active_bytes() - live == about(layout.live_bytes(2050) - unused)
    del again, span, snapshot
    assert active_bytes() - before == pytest.approx(0, abs=64)


def is_broadcast(array: Any) -> bool:
    return isinstance(array, mx.array) and not any(np.asarray(array).strides)


def test_tensors_are_views_of_the_arrays(llama: Subject) -> None:
    caches = llama.layout.new_caches()
    llama.feed(caches, [prompt(500)])
    span = llama.layout.capture(caches, 0, 500)
    before = mx.get_active_memory()
    tensors = span.tensors()
    assert mx.get_active_memory() == before
    assert sum(tensor.data.nbytes for tensor in tensors.values()) == span.nbytes + 4
    assert set(tensors) == {"kv.runs", "kv.0.0.k", "kv.0.0.v", "kv.1.0.k", "kv.1.0.v"}


def test_what_does_not_fit_is_an_error(make: Make) -> None:
    subject = make("gemma3_text")
    layout, caches = subject.layout, subject.layout.new_caches()
    subject.feed(caches, [prompt(40)])
    span, snapshot = layout.capture(caches, 0, 40), layout.snapshot(caches)
    with pytest.raises(ValueError, match="a row of 40 tokens has none from 0 to 41"):
        layout.capture(caches, 0, 41)
    with pytest.raises(ValueError, match="a row of 9 tokens has none from 9 to 9"):
        layout.capture_row(layout.merge([caches]), 0, 9, 9, 9)
    with pytest.raises(ValueError, match="the pieces hold 40 tokens, not 39"):
        layout.restore([(span, 0, 40)], snapshot, 39)
    with pytest.raises(ValueError, match="the snapshot is not of 39 tokens"):
        layout.restore([(span, 0, 39)], snapshot, 39)
    with pytest.raises(ValueError, match="39 tokens cannot be restored without a snapshot"):
        layout.restore([(span, 0, 39)], None, 39)
    with pytest.raises(ValueError, match="no inner cut at 40"):
        span.split(40)


def test_tensors_of_something_else_are_an_error(make: Make) -> None:
    subject = make("gemma3_text")
    layout, caches = subject.layout, subject.layout.new_caches()
    subject.feed(caches, [prompt(40)])
    span, snapshot = layout.capture(caches, 0, 40), layout.snapshot(caches)
    with pytest.raises(ValueError, match="there is no tensor kv.runs"):
        layout.rebuild_span(snapshot.tensors())
    with pytest.raises(ValueError, match="there is no tensor"):
        layout.rebuild_snapshot(span.tensors())
    tensors: dict[str, Tensor] = dict(span.tensors())
    name = next(name for name in tensors if name != "kv.runs")
    whole = tensors[name]
    tensors[name] = whole._replace(shape=(1, 2, 20, 64))
    with pytest.raises(ValueError, match="run 0 does not hold 40 tokens"):
        layout.rebuild_span(tensors)
    tensors[name] = whole._replace(data=whole.data[:-8])
    with pytest.raises(ValueError, match="reshape"):
        layout.rebuild_span(tensors)
    tensors[name] = whole._replace(dtype="F8")
    with pytest.raises(ValueError, match="no array type F8"):
        layout.rebuild_span(tensors)


@pytest.mark.parametrize(
    ("cache", "reason"),
    [
        ("ChunkedKVCache", "keeps a cache of class ChunkedKVCache"),
        ("RotatingKVCache", "keeps the first tokens beside its window"),
    ],
)
def test_a_model_that_cannot_be_batched_is_refused(cache: str, reason: str) -> None:
    arguments = {"ChunkedKVCache": (64,), "RotatingKVCache": (64, 4)}[cache]
    leaf = getattr(mlx_lm_cache, cache)(*arguments)
    network = SimpleNamespace(make_cache=lambda: [leaf])
    with pytest.raises(LoadError, match=reason):
        CacheLayout.probe(network, live_bits=None, codec=PlainCodec())


class Lacking:
    """A network that needs a kernel which the device lacks."""

    def __init__(self, layers: Any) -> None:
        self.layers = layers

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        raise RuntimeError("[GatherMM::eval] Currently only supports float32.")


def test_a_model_whose_kernels_the_device_lacks_is_refused(make: Make) -> None:
    network = Lacking(make("llama").network.layers)
    with pytest.raises(LoadError, match=r"cannot run: .GatherMM::eval. Currently .* float32\.$"):
        CacheLayout.probe(network, live_bits=None, codec=PlainCodec())


@pytest.mark.parametrize("bits", [4, 8])
def test_a_model_without_kv_of_tokens_cannot_store_it_quantized(make: Make, bits: int) -> None:
    with pytest.raises(LoadError, match="keeps no KV of single tokens"):
        make("mamba2", codec=AffineCodec(bits))


def test_quantized_live_kv_is_stored_in_its_own_form_only(make: Make) -> None:
    for codec in (PlainCodec(), AffineCodec(8)):
        layout = make("llama", live_bits=8, codec=codec).layout
        assert layout.part_names == AffineCodec.part_names
    with pytest.raises(LoadError, match="has 8 bits and is stored as it is"):
        make("llama", live_bits=8, codec=AffineCodec(4))
