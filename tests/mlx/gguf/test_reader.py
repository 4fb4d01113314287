"""GGUF files with impossible contents: one message, no memory, and never another error."""

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.engine.gguf import reader
from node.engine.gguf.convert import make_config
from node.engine.gguf.reader import GgufError, GgufFile
from tests.fakes import processor_time
from tests.mlx.gguf.test_convert import METADATA, gguf_bytes, text, write

TINY: dict[str, Any] = {"general.architecture": "llama", "a.list": [1, 2], "a.text": ["x", "y"]}
TENSORS: dict[str, tuple[str, tuple[int, ...], bytes]] = {
    name: ("F32", (8,), bytes(32)) for name in ("a", "b")
}
WHOLE = gguf_bytes(TINY, TENSORS)


def opened(folder: Path, data: bytes) -> GgufFile:
    path = folder / "m.gguf"
    path.write_bytes(data)
    return GgufFile(path)


def test_tensors_that_lie_over_each_other_are_refused(tmp_path: Path) -> None:
    offset = struct.pack("<IQ", 0, 32)
    assert WHOLE.count(offset) == 1
    with opened(tmp_path, WHOLE) as file:
        assert sorted(file.tensors) == ["a", "b"]
    with pytest.raises(GgufError, match="the tensor b lies over another one"):
        opened(tmp_path, WHOLE.replace(offset, struct.pack("<IQ", 0, 0)))
    with pytest.raises(GgufError, match="the tensor b lies beyond its end"):
        opened(tmp_path, WHOLE.replace(offset, struct.pack("<IQ", 0, 2**64 - 32)))


def test_an_alignment_is_a_number(tmp_path: Path) -> None:
    for alignment in (True, 0, 2**21, 32.0, "32"):
        with pytest.raises(GgufError, match="its alignment is out of range"):
            opened(tmp_path, gguf_bytes(TINY | {"general.alignment": alignment}, TENSORS))


def test_a_header_has_a_longest_length_and_a_list_a_largest_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_VALUES", 1)
    with pytest.raises(GgufError, match="it claims 2 values in one list"):
        opened(tmp_path, WHOLE)
    with pytest.raises(GgufError, match="it claims 2 strings in one list"):
        opened(tmp_path, gguf_bytes({"a": ["x", "y"]}, TENSORS))
    monkeypatch.setattr(reader, "MAX_VALUES", 8)
    monkeypatch.setattr(reader, "MAX_HEADER_BYTES", 100)
    with pytest.raises(GgufError, match="its header is longer than"):
        opened(tmp_path, WHOLE)


NUMBERS = [
    *(key for key, value in METADATA.items() if type(value) in (int, float)),
    *("llama.rope.scale_linear", "llama.rope.scaling.factor", "llama.rope.scaling.type"),
    *("llama.attention.key_length", "llama.attention.value_length", "llama.expert_count"),
]
VALUES = st.one_of(
    st.integers(0, 2**32 - 1), st.floats(width=32), st.booleans(), st.text(max_size=3)
)


@given(st.sampled_from(NUMBERS), VALUES)
def test_whatever_a_number_is_the_config_is_possible_or_there_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
) -> None:
    source = write(tmp_path_factory.mktemp("any"), **{key.replace(".", "__"): value})
    with GgufFile(source) as file:
        try:
            with processor_time(2.0):
                config = make_config(file, "float32")
        except GgufError:
            return
    for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim"):
        assert type(config[name]) is int and 0 < config[name] <= 2**20


@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=9))),
    st.integers(0, len(WHOLE)),
)
def test_whatever_bytes_are_changed_or_lost_the_tensors_lie_in_the_file_or_it_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]], length: int
) -> None:
    data = bytearray(WHOLE)
    for at, piece in changes:
        data[at : at + len(piece)] = piece
    for whole in (bytes(data), bytes(data[:length])):
        try:
            with processor_time(2.0):
                file = opened(tmp_path_factory.mktemp("any"), whole)
        except GgufError:
            continue
        with file:
            end = 0
            for tensor in sorted(file.tensors.values(), key=lambda each: each.start):
                assert end <= tensor.start <= tensor.start + tensor.size_bytes <= len(whole)
                end = tensor.start + tensor.size_bytes


def test_a_name_is_not_repeated_without_end(tmp_path: Path) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 0)
    tensor = text("n" * 10) + struct.pack("<IQIQ", 1, 8, 0, 0)
    with pytest.raises(GgufError, match="it has two tensors"):
        opened(tmp_path, head + tensor + tensor + bytes(64))


@pytest.mark.parametrize(
    "key", ["rope.scale_linear", "rope.freq_base", "attention.layer_norm_rms_epsilon"]
)
@pytest.mark.parametrize("value", ["x", True, float("nan"), float("inf"), -1.0])
def test_what_is_no_number_is_named(tmp_path: Path, key: str, value: Any) -> None:
    source = write(tmp_path, **{f"llama__{key.replace('.', '__')}": value})
    with GgufFile(source) as file, pytest.raises(GgufError, match=key):
        make_config(file, "float32")
