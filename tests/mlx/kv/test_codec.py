"""Encoded KV: near what it was, cut and joined at any token, of the reported size."""

import math

import mlx.core as mx
import numpy as np
import pytest

from node.engine.base import LoadError
from node.engine.kv.codec import AffineCodec, KvCodec, PlainCodec, codec_for, detached

pytestmark = pytest.mark.mlx

CODECS: list[KvCodec] = [PlainCodec(), AffineCodec(8), AffineCodec(4)]
WIDTHS = [(128, 128), (64, 32), (96, 64), (512, 0)]


def random_kv(widths: tuple[int, int], dtype: mx.Dtype = mx.float32) -> tuple[mx.array, mx.array]:
    """Keys and values of 2 heads and 12 tokens."""
    keys, values = (mx.random.normal((1, 2, 12, width)).astype(dtype) for width in widths)
    return keys, values


def difference(found: mx.array, expected: mx.array) -> float:
    """Root of the mean square."""
    if expected.size == 0:
        return 0.0
    return math.sqrt(float(mx.mean(mx.square(found - expected))))


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize(("codec", "most"), list(zip(CODECS, (0.0, 0.01, 0.15), strict=True)))
def test_decodes_to_nearly_the_same(codec: KvCodec, most: float, widths: tuple[int, int]) -> None:
    expected = random_kv(widths)
    found = codec.decode(codec.encode(*expected), mx.float32)
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert difference(a, b) <= most


@pytest.mark.parametrize("codec", CODECS)
def test_tokens_are_encoded_one_by_one(codec: KvCodec) -> None:
    keys, values = random_kv((64, 32))
    whole = codec.encode(keys, values)
    halves = [
        codec.encode(keys[:, :, part], values[:, :, part]) for part in (slice(5), slice(5, 12))
    ]
    for part, (head, tail) in zip(whole, zip(*halves, strict=True), strict=True):
        assert mx.array_equal(part, mx.concatenate([head, tail], axis=2))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("codec", CODECS)
def test_the_size_of_a_token_is_what_it_takes(
    codec: KvCodec, widths: tuple[int, int], dtype: mx.Dtype
) -> None:
    parts = codec.encode(*random_kv(widths, dtype))
    assert len(parts) == len(codec.part_names)
    assert sum(part.nbytes for part in parts) == 12 * codec.bytes_per_token(2, widths, dtype)
    keys, values = codec.decode(parts, dtype)
    assert keys.dtype == values.dtype == dtype


def test_a_width_that_no_group_divides_is_refused() -> None:
    with pytest.raises(LoadError, match="the width of a head is 80, which 32 does not divide"):
        AffineCodec(4).bytes_per_token(2, (64, 80), mx.float32)


def test_only_4_and_8_bits_are_there() -> None:
    assert isinstance(codec_for(None), PlainCodec)
    assert isinstance(codec_for(4), AffineCodec)
    with pytest.raises(LoadError, match="to 4 or 8 bits, not to 3"):
        codec_for(3)


@pytest.mark.parametrize("shape", [(1, 1, 4, 8), (1, 2, 1, 8), (1, 1, 1, 1), (1, 2, 3, 0), (1,)])
def test_a_detached_array_has_memory_of_its_own(shape: tuple[int, ...]) -> None:
    source = mx.random.normal(shape)
    mx.eval(source)
    before = mx.get_active_memory()
    copy = detached(source)
    mx.eval(copy)
    assert mx.array_equal(copy, source)
    if copy.size:
        assert mx.get_active_memory() - before >= copy.nbytes
        assert memory_of(copy) != memory_of(source)


def memory_of(array: mx.array) -> int:
    """Its address."""
    numbers = np.asarray(array)
    return int(numbers.__array_interface__["data"][0])
