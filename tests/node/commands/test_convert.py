"""`node-agent import` around its importer."""

import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from node.commands.convert import Import, ImportFailed, import_model
from node.hardware import python_command


def test_passes_the_requested_options_to_the_importer() -> None:
    job = Import(Path("a.gguf"), "org/tiny", "float16", keep_quantized=True)
    assert job.command(Path("/m/org--tiny")) == [
        *(*python_command(), "-m", "node.engine.gguf.convert", "--name", "org/tiny"),
        *("--dtype", "float16", "--keep-quantized", "--", "a.gguf", "/m/org--tiny"),
    ]


def importer(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    real = subprocess.Popen

    def start(_command: list[str], **options: Any) -> subprocess.Popen[str]:
        return real([sys.executable, "-c", code], **options)

    monkeypatch.setattr(subprocess, "Popen", start)


def test_repeats_the_importers_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importer(monkeypatch, """print('{"fraction": 0.5}'); print('{"error": "Bad."}'); exit(1)""")
    with pytest.raises(ImportFailed, match="Bad"):
        import_model(tmp_path, Import(Path("a.gguf"), "tiny"))


def test_an_importer_that_is_killed_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importer(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(ImportFailed, match="ended before it was done"):
        import_model(tmp_path, Import(Path("a.gguf"), "tiny"))


def test_reports_where_the_model_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    importer(monkeypatch, """print('{"fraction": 1.0}'); print('{"done": "x"}')""")
    home = tmp_path / "new" / "node"
    import_model(home, Import(Path("a.gguf"), "tiny"))
    assert "tiny is at" in capsys.readouterr().out
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
