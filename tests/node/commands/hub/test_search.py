"""`node-agent search`, at a hub that the test plays."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from node.cli import main
from node.commands.hub.search import short_number
from tests.node.commands.hub.played_hub import PlayedSearch, searching

ROWS: list[dict[str, Any]] = [
    {
        "id": "mlx-community/Qwen3-30B-A3B-Instruct-2507-4bit",
        "downloads": 1_234_567,
        "likes": 321,
        "gated": False,
        "pipeline_tag": "text-generation",
        "safetensors": {"parameters": {"BF16": 10**9, "U32": 4 * 10**9}, "total": 5 * 10**9},
    },
    {"id": "mlx-community/whisper", "pipeline_tag": "automatic-speech-recognition"},
    {"id": "org/gated-thing", "downloads": 950, "likes": 0, "gated": "auto"},
    {"id": "org/odd", "safetensors": {"parameters": {"Q9": 5}}},
]


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("MLX_FLEET_NODE_MEMORY_LIMIT_BYTES", "16GB")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def run(capsys: pytest.CaptureFixture[str], home: Path, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["search", *arguments, "--home", str(home)])
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, captured.out, captured.err


def test_lists_models_that_generate_text_with_size_and_whether_they_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    hub = PlayedSearch(json.dumps(ROWS).encode())
    with searching(hub, monkeypatch):
        code, out, err = run(capsys, tmp_path, "qwen3", "4bit", "--token", "hf_x")
        assert (code, err) == (0, "")
        (path,) = hub.paths
        assert "search=qwen3+4bit" in path or "search=qwen3%204bit" in path
        assert "filter=mlx" in path
        assert hub.tokens == ["Bearer hf_x"]
        lines = out.splitlines()
        assert max(map(len, lines[:-1])) <= 80
        assert lines[0].split() == ["model", "size", "fits", "downloads", "likes"]
        assert lines[1].split() == [ROWS[0]["id"], "18.0", "GB", "no", "1.2M", "321"]
        assert lines[2].split() == ["org/gated-thing", "(gated)", "?", "?", "950", "0"]
        assert lines[3].split()[:3] == ["org/odd", "?", "?"]
        assert "whisper" not in out
        assert f"node-agent run {ROWS[0]['id']}" in out
        _, out, _ = run(capsys, tmp_path, "qwen3", "--json", "--limit", "1")
        (shown,) = json.loads(out)
        assert shown == {
            "repo_id": ROWS[0]["id"],
            "weight_bytes": 18 * 10**9,
            "fits": "no",
            "downloads": 1_234_567,
            "likes": 321,
            "task": "text-generation",
            "gated": False,
        }


def test_nothing_found_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with searching(PlayedSearch(b"[]"), monkeypatch):
        code, out, _ = run(capsys, tmp_path, "nothing")
        assert (code, out.startswith("The hub has no MLX model")) == (0, True)
        assert run(capsys, tmp_path, "nothing", "--json")[1] == "[]\n"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"<html>log in to the hotel's network", 200, "is a proxy in the way?"),
        (b'{"error": "x"}', 401, "the token of --token or HF_TOKEN is wrong"),
        (b"", 429, "refuses more searches for now"),
        (b"", 503, "status 503; try again later"),
    ],
)
def test_a_hub_that_does_not_respond_as_one_is_an_error_of_one_line(
    body: bytes,
    status: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with searching(PlayedSearch(body, status), monkeypatch):
        code, out, err = run(capsys, tmp_path, "qwen3")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert words in err


def test_without_a_hub_the_error_says_so_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    code, out, err = run(capsys, tmp_path, "qwen3")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "The hub cannot be reached: nothing listens at its address." in err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    code, _, err = run(capsys, tmp_path, "qwen3")
    assert (code, "HF_HUB_OFFLINE is set" in err) == (1, True)


def test_words_that_are_none_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (" ", "x" * 300):
        code, _, err = run(capsys, tmp_path, words)
        assert (code, "Give words of the model's name" in err) == (1, True)


def test_large_counts_are_short() -> None:
    counts = (0, 999, 1000, 12_345, 999_999, 3_400_000, 25_000_000)
    assert [*map(short_number, counts)] == ["0", "999", "1.0K", "12K", "1.0M", "3.4M", "25M"]
