"""Tests the differences that a fingerprint distinguishes, and those that it does not."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from node.engine.base import LoadError
from node.engine.model import fingerprint as module
from node.engine.model.fingerprint import ModelTexts
from node.engine.model.weight_hashes import WeightHashes

DATA_BYTES = 1_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "tokenizer.json").write_text("{}")
    for number in (1, 2):
        write_weights(path / f"model-{number}.safetensors", bytes(DATA_BYTES))
    return path


def write_weights(path: Path, data: bytes, dtype: str = "U8") -> None:
    tensor = {"dtype": dtype, "shape": [len(data)], "data_offsets": [0, len(data)]}
    header = json.dumps({"w": tensor}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def change_byte(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def mark(folder: Path, cache: int | None = None, live: int | None = None) -> str:
    texts = ModelTexts(folder, kv_cache_bits=cache, kv_live_bits=live)
    return texts.fingerprint(WeightHashes(folder.parent / "kv", folder).make(lambda: False))


def test_is_32_hexadecimal_digits(folder: Path) -> None:
    digits = mark(folder)
    assert len(digits) == 32
    assert int(digits, 16) >= 0


def test_a_copy_of_the_folder_has_the_same_one(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "elsewhere" / "copy"))
    for path in copy.iterdir():
        os.utime(path, (1, 1))
    assert mark(copy) == mark(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "config.json").write_text('{"model_type": "llama" }'),
        lambda folder: (folder / "tokenizer.json").write_text("[]"),
        lambda folder: (folder / "tokenizer.json").rename(folder / "tokenizer.model"),
        lambda folder: (folder / "hf_quant_config.json").write_text("{}"),
        lambda folder: change_byte(folder / "model-1.safetensors", 1000),
        lambda folder: change_byte(folder / "model-2.safetensors", 500_000),
        lambda folder: change_byte(folder / "model-2.safetensors", -1),
        lambda folder: (folder / "model-2.safetensors").rename(folder / "model-3.safetensors"),
        lambda folder: write_weights(folder / "model-1.safetensors", bytes(DATA_BYTES), "I8"),
        lambda folder: write_weights(folder / "model-1.safetensors", bytes(DATA_BYTES + 1)),
        lambda folder: write_weights(folder / "model-3.safetensors", b""),
    ],
)
def test_differs_after_a_change_of_the_model(
    folder: Path, change: Callable[[Path], object]
) -> None:
    before = mark(folder)
    change(folder)
    assert mark(folder) != before


def test_differs_by_bits_format_and_version(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {mark(folder), mark(folder, 4), mark(folder, 8), mark(folder, None, 4)}
    monkeypatch.setattr(module, "CACHE_FORMAT", 0)
    marks.add(mark(folder))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0.1")
    marks.add(mark(folder))
    assert len(marks) == 6


def test_chat_templates_and_defaults_of_sampling_do_not_count(folder: Path) -> None:
    before = mark(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    (folder / "tokenizer_config.json").write_text('{"chat_template": ""}')
    assert mark(folder) == before


@pytest.mark.parametrize(
    "data", [None, b"", bytes(100), (1 << 40).to_bytes(8, "little"), b"\x09" + bytes(10)]
)
def test_a_folder_without_readable_weights_has_none(tmp_path: Path, data: bytes | None) -> None:
    if data is not None:
        (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(LoadError, match=r"has no fingerprint: .*\.$"):
        mark(tmp_path)
