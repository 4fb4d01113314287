"""Names and sizes from the headers of safetensors files."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.models.safetensors_header import (
    DamagedFile,
    core_name,
    foreign_part,
    read_header,
    tensor_bytes,
    text_bytes,
)


def write_weights(path: Path, **sizes: int) -> Path:
    """A file of bytes; in a name `__` stands for a dot."""
    header, end = {}, 0
    for name, size in sizes.items():
        offsets = [end, end + size]
        header[name.replace("__", ".")] = {"dtype": "U8", "shape": [size], "data_offsets": offsets}
        end += size
    text = json.dumps(header | {"__metadata__": {"format": "mlx"}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))
    return path


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("vision_tower.layers.0.mlp.weight", "vision_tower"),
        ("model.visual.blocks.3.attn.weight", "visual"),
        ("language_model.mtp.layers.0.weight", "mtp"),
        ("mlp1.0.weight", "mlp1"),
        ("model.layers.0.connector.weight", None),
        ("model.visuals.weight", None),
        ("model.embed_tokens.weight", None),
    ],
)
def test_a_foreign_part_is_a_whole_segment_before_any_number(name: str, part: str | None) -> None:
    assert foreign_part(name) == part


@pytest.mark.parametrize(
    ("name", "core"),
    [
        ("model.layers.0.mlp", ("layers", "0", "mlp")),
        ("language_model.model.layers.0", ("layers", "0")),
        ("model.text_model.norm", ("norm",)),
        ("lm_head", ("lm_head",)),
        ("model", ("model",)),
        ("thinker.model.norm", ("thinker", "model", "norm")),
    ],
)
def test_the_wrappers_in_front_are_no_part_of_the_core(name: str, core: tuple[str, ...]) -> None:
    assert core_name(name) == core


def test_reads_the_size_of_each_tensor(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "m", a=3, b__c=5)
    assert tensor_bytes(path) == {"a": 3, "b.c": 5}
    assert json.loads(read_header(path))["a"]["shape"] == [3]


def test_text_bytes_are_those_of_tensors_that_are_not_foreign(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "m", model__norm=3, visual__w=50, mtp__w=7)
    assert text_bytes(path) == 3


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "m", a=3)
    assert text_bytes(path) == 3
    write_weights(path, a=4)
    assert text_bytes(path) == 4


@pytest.mark.parametrize(
    "header",
    [b"", b"[]", b"{", b'{"a": 1}', b'{"a": {}}', b'{"a": {"data_offsets": [1]}}', b"\xff"],
)
def test_a_file_with_no_such_header_counts_whole(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "m"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b" " * (header == b""))
    with pytest.raises(ValueError, match=r"."):
        tensor_bytes(path)
    assert text_bytes(path) == path.stat().st_size


def test_a_header_must_be_whole_and_of_a_sane_length(tmp_path: Path) -> None:
    path = tmp_path / "m"
    for data in (bytes(8), (1 << 40).to_bytes(8, "little"), (9).to_bytes(8, "little") + b"{}"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"m is (no safetensors file|cut short)"):
            read_header(path)


OFFSETS = st.integers(-3, 40) | st.sampled_from([10**30, -(2**63), 2**64, 1.5, "7", None, True])
TENSORS = st.dictionaries(
    st.text(max_size=3),
    st.fixed_dictionaries({"data_offsets": st.lists(OFFSETS, max_size=3)}),
    max_size=4,
)


@pytest.mark.parametrize(
    "offsets",
    [
        [[-5, 10]],
        [[10, 5]],
        [[0, 11]],
        [[10**30, 10**31]],
        [[0, 6], [4, 10]],
        [[0, 10], [0, 10]],
        [[0, 8], [2, 4]],
    ],
)
def test_tensors_outside_their_file_or_over_each_other_are_an_error(
    tmp_path: Path, offsets: list[list[int]]
) -> None:
    path = tmp_path / "m.safetensors"
    header = {f"t{i}": {"dtype": "U8", "data_offsets": each} for i, each in enumerate(offsets)}
    write_header(path, header, data_bytes=10)
    for read in (tensor_bytes, text_bytes):
        with pytest.raises(DamagedFile, match=r"m\.safetensors is damaged or cut short"):
            read(path)


def write_header(path: Path, header: Any, data_bytes: int) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data_bytes))


@given(TENSORS, st.integers(0, 40))
def test_whatever_a_header_contains_no_more_is_counted_than_there_is(
    tmp_path_factory: pytest.TempPathFactory, header: Any, data_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "m"
    write_header(path, header, data_bytes)
    try:
        sizes = tensor_bytes(path)
    except ValueError:
        return
    assert min(sizes.values(), default=0) >= 0
    assert sum(sizes.values()) <= data_bytes


@given(st.binary(max_size=60))
def test_whatever_a_file_contains_its_size_is_returned_or_that_it_is_damaged(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "m"
    path.write_bytes(data)
    with contextlib.suppress(DamagedFile):
        assert 0 <= text_bytes(path) <= len(data)


def test_a_header_that_is_nested_without_end_is_none(tmp_path: Path) -> None:
    path = tmp_path / "m"
    text = b"[" * 200_000
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    assert text_bytes(path) == path.stat().st_size
