"""Tests the facts that are read of a model folder, and the messages that refuse one."""

import json
import resource
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from node.engine.base import LoadError
from node.engine.model.load import LoadedModel, load_folder
from node.engine.model.weights import load_network
from tests.mlx.tiny import CONTEXT_TOKENS, VOCAB_SIZE
from tests.node.model_folders import bring_code

pytestmark = pytest.mark.mlx


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may spoil."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def load(folder: Path) -> LoadedModel:
    """Loads in a thread of its own, as the worker does."""

    def work() -> LoadedModel:
        try:
            return load_folder(folder, fractions.append)
        finally:
            mx.clear_streams()

    fractions: list[float] = []
    with ThreadPoolExecutor(1) as thread:
        model = thread.submit(work).result(60)
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    return model


def edit(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


def test_reads_the_facts_of_a_model(folder: Path) -> None:
    model = load(folder)
    assert model.vocab_size == VOCAB_SIZE
    assert model.context_tokens == CONTEXT_TOKENS
    assert model.end_tokens == {0, 2}
    header_and_weights = (folder / "model.safetensors").stat().st_size
    assert 0 <= header_and_weights - model.weight_bytes < 4096


def test_code_of_a_tokenizer_is_not_run(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    ran = bring_code(folder)
    with pytest.raises(LoadError, match=r"The tokenizer of .* cannot be read"):
        load(folder)
    assert not ran.exists()


def test_code_of_a_network_is_not_run(folder: Path) -> None:
    ran = folder / "ran"
    (folder / "x.py").write_text(f"open({str(ran)!r}, 'w')")
    edit(folder / "config.json", model_file="x.py")
    with pytest.raises(LoadError):
        load(folder)
    # Whoever lets it through to the library finds that shut as well.
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_network(folder)
    assert not ran.exists()


def test_gives_back_the_limit_of_open_files_as_far_as_allowed(folder: Path) -> None:
    load(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [([7, 8], 2, {7, 8, 2}), (7, 5, {7, 2}), (None, [5, 6], {5, 6, 2}), (None, None, {2})],
)
def test_end_tokens_are_read_from_every_place_that_names_them(
    folder: Path, generation: Any, config: Any, expected: set[int]
) -> None:
    edit(folder / "generation_config.json", eos_token_id=generation)
    edit(folder / "config.json", eos_token_id=config)
    assert load(folder).end_tokens == expected


def test_a_context_length_may_have_other_names(folder: Path) -> None:
    edit(folder / "config.json", max_position_embeddings=None, text_config={"n_positions": 300})
    assert load(folder).context_tokens == 300
    edit(folder / "config.json", text_config=None)
    edit(folder / "tokenizer_config.json", model_max_length=10**30)
    assert load(folder).context_tokens == 8192


def truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5000])


def lose_a_tensor(folder: Path) -> None:
    edit(folder / "config.json", num_hidden_layers=3)


def lose_a_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: shutil.rmtree(folder), "There is no model folder"),
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json of .* cannot"),
        (lambda folder: (folder / "config.json").write_text("[]"), "is not a JSON object"),
        (lambda folder: edit(folder / "config.json", model_type=None), "names no model_type"),
        (lambda folder: edit(folder / "config.json", model_type="steam"), "type steam are not"),
        (lambda folder: edit(folder / "config.json", model_file="x.py"), "code of its own"),
        (
            lambda folder: edit(folder / "config.json", text_config={"model_file": "x.py"}),
            "code of its own",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no model"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99), "cannot be loaded"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "The tokenizer of .* cannot"),
        (truncate, "cannot be loaded"),
        (lose_a_tensor, "cannot be loaded: Missing"),
        (lose_a_shard, "lacks model-00002.safetensors"),
    ],
)
def test_refuses_a_damaged_folder_with_a_message(
    folder: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    spoil(folder)
    with pytest.raises(LoadError, match=reason) as caught:
        load(folder)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
