"""The models on disk: names, sizes, and what may be deleted."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from node.errors import BadRequest, StartError, UnknownModel
from node.models import model_files
from node.models.model_files import PARTIAL_MARKER, NotAModel, write_name
from node.models.pull import unfinished
from node.models.store import ModelStore, ServedFolder, check_name, read_entry

LLAMA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def make_model(folder: Path, config: dict[str, Any] | None = None, size: int = 100) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA if config is None else config))
    (folder / "model.safetensors").write_bytes(bytes(size))
    return folder


def test_lists_models_by_the_name_in_their_name_file(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    folder = make_model(store.folder_for("org/Tiny-1B"), size=70)
    write_name(folder, "org/Tiny-1B", "hub:org/Tiny-1B")
    (entry,) = store.list()
    assert (entry.name, entry.folder, entry.weight_bytes) == ("org/Tiny-1B", folder.resolve(), 70)
    assert folder.name == "org--Tiny-1B"


def test_a_folder_without_a_name_file_is_named_after_itself(tmp_path: Path) -> None:
    make_model(tmp_path / "org--tiny")
    assert [entry.name for entry in ModelStore(tmp_path).list()] == ["org/tiny"]


def test_a_store_without_a_folder_is_empty(tmp_path: Path) -> None:
    assert ModelStore(tmp_path / "none").list() == ()


def test_half_written_folders_are_not_listed(tmp_path: Path) -> None:
    make_model(tmp_path / "a.partial")
    (make_model(tmp_path / "b") / ".partial").touch()
    (make_model(tmp_path / "c") / "config.json").unlink()
    (make_model(tmp_path / "d") / "model.safetensors").unlink()
    index = {"weight_map": {"w": "model-1.safetensors", "v": "model-2.safetensors"}}
    sharded = make_model(tmp_path / "e")
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    (sharded / "model-1.safetensors").write_bytes(bytes(3))
    assert ModelStore(tmp_path).list() == ()
    (sharded / "model-2.safetensors").write_bytes(bytes(4))
    assert [entry.weight_bytes for entry in ModelStore(tmp_path).list()] == [7]


@pytest.mark.parametrize(
    ("config", "context_tokens", "kv_bytes"),
    [
        (LLAMA, 4096, 4 * 2 * 8 * 2 * 2),
        (LLAMA | {"torch_dtype": "float32"}, 4096, 4 * 2 * 8 * 2 * 4),
        (LLAMA | {"head_dim": 32}, 4096, 4 * 2 * 32 * 2 * 2),
        ({"text_config": LLAMA, "dtype": "bfloat16"}, 4096, 4 * 2 * 8 * 2 * 2),
        (LLAMA | {"num_key_value_heads": [1, 4, 2, 1]}, 4096, (1 + 4 + 2 + 1) * 8 * 2 * 2),
        ({"model_type": "mamba"}, None, 0),
        ({"max_position_embeddings": "many", "num_hidden_layers": True}, None, 0),
        (
            LLAMA
            | {
                "kv_lora_rank": 16,
                "qk_nope_head_dim": 8,
                "qk_rope_head_dim": 4,
                "v_head_dim": 6,
            },
            4096,
            4 * 8 * (8 + 4 + 6) * 2,
        ),
    ],
)
def test_reads_context_and_kv_size_from_the_config(
    tmp_path: Path, config: dict[str, Any], context_tokens: int | None, kv_bytes: int
) -> None:
    entry = read_entry(make_model(tmp_path / "m", config))
    assert (entry.context_tokens, entry.kv_bytes_per_token) == (context_tokens, kv_bytes)


@pytest.mark.parametrize("text", ["[]", "{", "\xff"])
def test_a_broken_config_is_named_in_one_message(tmp_path: Path, text: str) -> None:
    folder = make_model(tmp_path / "m")
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(NotAModel, match=r"config\.json"):
        read_entry(folder)


def test_a_served_folder_takes_its_given_name_and_wins(tmp_path: Path) -> None:
    make_model(tmp_path / "store" / "tiny", size=1)
    elsewhere = make_model(tmp_path / "elsewhere", size=2)
    store = ModelStore(tmp_path / "store", (ServedFolder(elsewhere, "tiny"),))
    assert [(entry.name, entry.weight_bytes) for entry in store.list()] == [("tiny", 2)]


def test_names_near_models(tmp_path: Path) -> None:
    for name in ("org/SmolLM2-135M", "org/Qwen3-8B", "phi"):
        write_name(make_model(tmp_path / name.replace("/", "--")), name, "")
    store = ModelStore(tmp_path)
    assert store.near("smollm2-135")[0] == "org/SmolLM2-135M"
    assert store.near("zzzz") == ()
    assert store.find("phi") is not None
    assert store.find("ph") is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a/b/c",
        "../x",
        "a/../b",
        "/etc",
        ".hidden",
        "a--b",
        "a b",
        "a\nb",
        "ü",
        "a\0",
        "x.partial",
    ],
)
def test_a_name_that_is_no_plain_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadRequest):
        ModelStore(tmp_path).folder_for(name)


def test_a_hub_name_is_a_good_name() -> None:
    assert check_name("mlx-community/Qwen2.5-0.5B_x") == "mlx-community/Qwen2.5-0.5B_x"


def test_removes_a_model_of_its_own(tmp_path: Path) -> None:
    make_model(tmp_path / "tiny", size=9)
    store = ModelStore(tmp_path)
    entry = store.find("tiny")
    assert entry is not None
    assert store.remove("tiny") == entry.disk_bytes > 9
    assert not (tmp_path / "tiny").exists()
    with pytest.raises(UnknownModel, match="tiny"):
        store.remove("tiny")


def test_removes_an_unfinished_pull(tmp_path: Path) -> None:
    (make_model(tmp_path / "tiny") / ".partial").touch()
    ModelStore(tmp_path).remove("tiny")
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize("deleted", range(4))
@pytest.mark.parametrize("marker", [None, "peer:hub:org/tiny@c0ffee", "hub:org/tiny@c0ffee"])
def test_what_a_removal_leaves_that_is_cut_short_is_no_model_and_no_pull_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str | None, deleted: int
) -> None:
    folder = make_model(tmp_path / "tiny")
    if marker is not None:
        (folder / ".partial").write_text(marker)

    (folder / "more").mkdir()
    (folder / "more" / "file").touch()
    gone, unlink = list[object](), os.unlink

    def killed(path: Any, **options: Any) -> None:
        if len(gone) == deleted:
            raise OSError("cut short")
        gone.append(path)
        unlink(path, **options)

    store = ModelStore(tmp_path)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="cut short"):
        patched.setattr(os, "unlink", killed)
        store.remove("tiny")
    assert store.list() == ()
    (left,) = unfinished(tmp_path)
    assert (left.name, left.repo_id, left.is_from_peer) == ("tiny", "", False)


def test_removes_a_link_and_not_what_it_points_to(tmp_path: Path) -> None:
    outside = make_model(tmp_path / "outside")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "tiny").symlink_to(outside)
    store = ModelStore(tmp_path / "store")
    assert store.list()[0].folder == outside.resolve()
    store.remove("tiny")
    assert store.list() == ()
    assert (outside / "model.safetensors").exists()


def test_refuses_to_remove_a_served_folder(tmp_path: Path) -> None:
    outside = make_model(tmp_path / "outside")
    store = ModelStore(tmp_path / "store", (ServedFolder(outside, "tiny"),))
    with pytest.raises(BadRequest, match="outside the agent's own folder"):
        store.remove("tiny")
    (outside / "config.json").write_text("{")
    with pytest.raises(BadRequest, match="outside the agent's own folder"):
        store.remove("tiny")
    assert (outside / "model.safetensors").exists()


def test_an_index_cannot_name_files_outside_the_folder(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m", size=5)
    (tmp_path / "secret.safetensors").write_bytes(bytes(50))
    index = {"weight_map": {"w": "../secret.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(NotAModel, match=r"lacks secret\.safetensors"):
        read_entry(folder)


def test_what_cannot_be_read_is_skipped_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_model(tmp_path / "good")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (make_model(tmp_path / "deep") / "config.json").write_text("[" * 100_000)
    index = {"weight_map": {"w": ["a list"]}}
    odd = make_model(tmp_path / "odd") / "model.safetensors.index.json"
    odd.write_text(json.dumps(index))
    store = ModelStore(tmp_path, (ServedFolder(tmp_path / "circle"),))
    for _ in range(2):
        assert [entry.name for entry in store.list()] == ["good"]
    assert len(caplog.messages) == 3
    assert str(tmp_path / "circle") in caplog.messages[0]
    assert str(tmp_path / "deep") in caplog.messages[1]
    assert str(tmp_path / "odd") in caplog.messages[2]


def test_what_is_to_be_a_model_and_cannot_be_read_is_broken(tmp_path: Path) -> None:
    make_model(tmp_path / "good")
    (make_model(tmp_path / "org--half") / "model.safetensors").unlink()
    (make_model(tmp_path / "text") / "config.json").write_text("{")
    index = {"weight_map": {"w": "model-00002.safetensors"}}
    (make_model(tmp_path / "shards") / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "away").symlink_to(tmp_path / "disk" / "away")
    (make_model(tmp_path / "coming") / PARTIAL_MARKER).touch()
    (make_model(tmp_path / "twice") / "config.json").unlink()
    served = make_model(tmp_path.parent / "served")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "README.md").touch()
    (tmp_path / ".cache").mkdir()
    (tmp_path / "file").touch()
    store = ModelStore(tmp_path, (ServedFolder(served, "twice"),))
    here = store.contents()
    assert [entry.name for entry in here.models] == ["good", "twice"]
    assert {each.name: each.reason for each in here.broken} == {
        "away": "There is no folder away.",
        "org/half": "org/half has no safetensors weights.",
        "shards": "shards lacks model-00002.safetensors.",
        "text": "config.json is not valid JSON.",
    }
    for name in ("org/half", "away"):
        assert store.has(name)
        store.remove(name)
        assert not store.has(name)
    assert not (tmp_path / "org--half").exists()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            '{"num_hidden_layers": 1000000000}',
            "config.json of m is not a model's: its num_hidden_layers is more than 1,000.",
        ),
        (
            '{"text_config": {"max_position_embeddings": 99999999999999999999}}',
            "config.json of m is not a model's: its max_position_embeddings is more than "
            "1,099,511,627,776.",
        ),
        (
            None,
            "m cannot be read: model.safetensors is damaged or cut short: its tensor 'w' is "
            "declared at bytes -5 to 9 of 9.",
        ),
    ],
)
def test_numbers_that_are_true_of_no_model_break_it_and_are_named(
    tmp_path: Path, config: str | None, reason: str
) -> None:
    folder = make_model(tmp_path / "m")
    if config is not None:
        (folder / "config.json").write_text(config)
    else:
        header = json.dumps({"w": {"dtype": "U8", "data_offsets": [-5, 9]}}).encode()
        data = len(header).to_bytes(8, "little") + header + bytes(9)
        (folder / "model.safetensors").write_bytes(data)
    (each,) = ModelStore(tmp_path).contents().broken
    assert each.reason == reason


def test_a_config_may_have_the_numbers_that_python_writes(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    (folder / "config.json").write_text('{"time_step_limit": [0.0, Infinity], "n_positions": 7}')
    assert read_entry(folder).context_tokens == 7


def test_files_that_are_too_large_or_name_too_many_are_of_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_model(tmp_path / "m")
    names = {"weight_map": {"a": "model.safetensors", "b": "more.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(names))
    monkeypatch.setattr(model_files, "MAX_SHARDS", 1)
    with pytest.raises(NotAModel, match="names 2 files"):
        read_entry(folder)
    monkeypatch.setattr(model_files, "MAX_JSON_BYTES", 1)
    with pytest.raises(NotAModel, match="more than any model's"):
        read_entry(folder)


def test_a_folder_that_nobody_may_look_into_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path / "shut")

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    (each,) = ModelStore(tmp_path).contents().broken
    assert each.reason == "shut cannot be read: [Errno 13] Permission denied: 'shut'."


def test_a_store_that_is_no_folder_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("")
    with pytest.raises(StartError, match=r"models cannot be read: Not a directory\.$"):
        ModelStore(tmp_path / "models").list()


def write_tensors(path: Path, **sizes: int) -> None:
    header, end = {}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))


def test_weights_are_counted_without_what_text_has_no_use_for(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    write_tensors(folder / "model.safetensors", **{"model.norm": 30, "visual.w": 500, "mtp.w": 9})
    assert read_entry(folder).weight_bytes == 30
    # A removal frees the whole folder.
    size_bytes = sum(file.stat().st_size for file in folder.iterdir())
    assert ModelStore(tmp_path).remove("m") == size_bytes


def test_reads_what_a_sequence_takes_besides_its_tokens(tmp_path: Path) -> None:
    sliding = {
        "model_type": "llama",
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 100,
    }
    entry = read_entry(make_model(tmp_path / "m", LLAMA | sliding))
    layer_bytes = 2 * 8 * 2 * 2
    assert entry.kv_bytes_per_token == 2 * layer_bytes
    assert entry.kv_bytes_per_row == 2 * 100 * layer_bytes


@pytest.mark.parametrize("name", ["\x1b[31mred", "two\r\nlines", "\u202ebackwards"])
def test_a_folder_whose_name_cannot_be_shown_is_no_model(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make_model(tmp_path / name)
    make_model(tmp_path / "good")
    store = ModelStore(tmp_path)
    assert [entry.name for entry in (*store.list(), *store.list())] == ["good", "good"]
    (line,) = caplog.messages
    assert "unprintable name" in line
