"""The layout of the disk tier's files."""

import json

import pytest
from safetensors import deserialize

from node.engine.cache.disk.format import CorruptFile, decode, encode
from node.engine.cache.parts import Tensor
from tests.node.engine.cache.disk_world import same, some_tensors


def _content(seed: int = 1) -> bytes:
    return b"".join(encode(some_tensors(seed)).views)


def test_what_is_decoded_is_what_was_encoded() -> None:
    assert same(decode(memoryview(_content())), some_tensors(1))


def test_the_safetensors_library_reads_the_file() -> None:
    found = dict(deserialize(_content()))  # type: ignore[no-untyped-call]
    wanted = some_tensors(1)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name]["dtype"] == tensor.dtype
        assert tuple(found[name]["shape"]) == tensor.shape
        assert bytes(found[name]["data"]) == bytes(tensor.data)


def test_no_array_is_copied() -> None:
    content = bytearray(64)
    layout = encode({"a": Tensor("F32", (16,), memoryview(content))})
    content[:4] = b"\x01\x02\x03\x04"
    assert bytes(layout.views[1][:4]) == b"\x01\x02\x03\x04"
    assert decode(memoryview(b"".join(layout.views)))["a"].shape == (16,)


def test_the_size_is_known_before_the_file_is_written() -> None:
    assert encode(some_tensors(2)).nbytes == len(b"".join(encode(some_tensors(2)).views))


def test_each_array_begins_at_a_multiple_of_its_items_size() -> None:
    tensors = {
        "a": Tensor("U8", (3,), memoryview(b"abc")),
        "b": Tensor("F32", (1,), memoryview(b"abcd")),
        "c": Tensor("F16", (1,), memoryview(b"ab")),
        "d": Tensor("I64", (1,), memoryview(b"abcdefgh")),
    }
    content = b"".join(encode(tensors).views)
    header_bytes = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + header_bytes])
    assert header_bytes % 8 == 0
    begins = {name: entry["data_offsets"][0] for name, entry in header.items()}
    assert begins == {"d": 0, "b": 8, "c": 12, "a": 14}


@pytest.mark.parametrize(
    "tensor",
    [Tensor("F32", (2,), memoryview(b"abcd")), Tensor("float32", (1,), memoryview(b"abcd"))],
)
def test_an_array_whose_dtype_or_size_is_wrong_is_refused(tensor: Tensor) -> None:
    with pytest.raises(ValueError):
        encode({"a": tensor})


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"[1]",
        b'{"a":{"dtype":"F32"}}',
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":3,"data_offsets":[0,4]}}',
    ],
)
def test_a_header_that_makes_no_sense_is_a_corrupt_file(header: bytes) -> None:
    content = len(header).to_bytes(8, "little") + header + b"abcd"
    with pytest.raises(CorruptFile):
        decode(memoryview(content))
