"""The `node-agent` command: one line for what fails, and the exit codes."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from node.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    captured = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return code, captured.out, captured.err


def make_model(home: Path, name: str) -> Path:
    folder = home / "models" / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"max_position_embeddings": 2048}')
    (folder / "model.safetensors").write_bytes(bytes(10))
    return folder


def test_lists_models_as_json_and_as_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ("--home", str(tmp_path))
    code, out, _ = run(capsys, "models", *home)
    assert (code, "pull" in out) == (0, True)
    make_model(tmp_path, "org--tiny")
    _, out, _ = run(capsys, "models", "--json", *home)
    (shown,) = json.loads(out)
    assert (shown["name"], shown["weight_bytes"]) == ("org/tiny", 10)
    _, out, _ = run(capsys, "models", *home)
    assert "org/tiny" in out
    assert "2,048" in out


def test_lists_a_broken_model_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ("--home", str(tmp_path))
    (make_model(tmp_path, "org--tiny") / "model.safetensors").unlink()
    _, out, _ = run(capsys, "models", *home)
    assert "org/tiny cannot be served: org/tiny has no safetensors weights." in out
    assert "`node-agent rm org/tiny` deletes its files" in out
    _, out, _ = run(capsys, "models", "--json", *home)
    (shown,) = json.loads(out)
    assert shown["broken"] == "org/tiny has no safetensors weights."
    code, out, _ = run(capsys, "rm", "org/tiny", "--yes", *home)
    assert (code, list((tmp_path / "models").iterdir())) == (0, [])


def test_removes_a_model_after_a_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_model(tmp_path, "tiny")
    home = ("--home", str(tmp_path))
    code, _, err = run(capsys, "rm", "tinny", "--home", str(tmp_path))
    assert (code, err) == (
        1,
        "node-agent: There is no model 'tinny' on this node. Did you mean tiny?\n",
    )
    code, out, _ = run(capsys, "rm", "tiny", "--yes", *home)
    assert code == 0
    assert "Removed tiny" in out
    assert not folder.exists()


def test_a_question_without_an_answer_removes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_model(tmp_path, "tiny")

    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, _, err = run(capsys, "rm", "tiny", "--home", str(tmp_path))
    assert code == 1
    assert err.splitlines()[-1] == "node-agent: Stopped."
    assert folder.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["serve", "--engine", "cuda"], 2, "--engine must be one of text, scripted, not 'cuda'"),
        (["serve", "--memory-limit", "much"], 2, "--memory-limit: 'much' is not a size"),
        (["serve", "--kv-live-size", "1"], 2, "--kv-live-size must be at least 1MiB, not '1'"),
        (["serve", "--warm", "m"], 2, "--warm: "),
        (["serve", "--memory-budget", "12GB"], 2, "--memory-budget"),
        (["serve", "--kv-disk-size", "none"], 2, "--kv-disk-size: 'none' is not a size"),
        (["serve", "--kv-disk-size", "none"], 2, "or give off or auto"),
        (
            ["doctor", "--max-rows", "300"],
            2,
            "--max-rows must be a whole number from 1 to 256, not '300'",
        ),
        (["serve", "--kv-cache-bits", "5"], 2, "--kv-cache-bits must be 4 or 8, not '5'"),
        (
            ["serve", "--max-rows", "0"],
            2,
            "--max-rows must be a whole number from 1 to 256, not '0'",
        ),
        (["serve", "--model", "/nowhere"], 2, "/nowhere"),
        (["serve", "--script", "x.json"], 2, "--engine scripted"),
        (["serve", "--port", "70000"], 2, "port"),
        (["serve", "--no-such-option"], 2, "--no-such-option"),
        (["pull", "a/b", "--name", "../c"], 1, "cannot be a model's name"),
        (
            ["import", "x.gguf", "--name", "x", "--dtype", "int3"],
            2,
            "--dtype must be one of float32, bfloat16, float16, not 'int3'",
        ),
        (["import", "/none.gguf", "--name", "x"], 1, "cannot be read"),
        (["rm"], 2, "name"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_whatever_fails_is_one_line_and_an_exit_code(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    monkeypatch.setenv("MLX_FLEET_HOME", str(tmp_path))
    ended, _, err = run(capfd, *arguments)
    assert ended == code
    assert words in err
    assert err.startswith("node-agent: ")
    assert err.count("\n") == 1


def test_shows_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert (code, out.startswith("node-agent ")) == (0, True)
    code, out, _ = run(capsys, "serve", "--help")
    assert code == 0
    options = (
        "home host port engine memory-limit max-rows script model prefill-chunk "
        "decode-stall-target-ms kv-live-size kv-cache-size kv-snapshot-size kv-cache-bits "
        "kv-live-bits kv-disk-size"
    )
    for option in [
        *options.split(),
        "kv-disk-writes-per-day",
        "exit-on-stdin-eof",
        "served-model-name",
    ]:
        assert f"--{option}" in out


WITHOUT_EXTRA = """
import sys
from node.commands.configuration import EXTRA
sys.modules |= dict.fromkeys(EXTRA)
from node.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["pull", "org/tiny"],
        ["import", "x.gguf", "--name", "x"],
        ["serve", "--port", "0"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_base_install_reports_in_one_line_what_is_missing(
    tmp_path: Path, arguments: list[str]
) -> None:
    command = [sys.executable, "-c", WITHOUT_EXTRA, *arguments, "--home", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("node-agent: The node extra is not complete (mlx, mlx_lm,")
    assert done.stderr.endswith("; run pip install '.[node]' in your clone of mlx-fleet.\n")


def test_the_doctor_examines_the_base_install(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_EXTRA, "doctor", "--json", "--home", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    # A slow machine shows its progress.
    assert done.returncode == 1 and done.stderr in ("", "examining this machine …\n")
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert checks["extra"]["level"] == "fail"
    assert "psutil" in checks["extra"]["sentence"]
    assert checks["extra"]["advice"] == "Run `pip install '.[node]'` in your clone of mlx-fleet."
    assert {"memory", "disk", "models"} <= checks.keys()


HEAVY = (
    "node.parsing.registry",
    "httpx",
    "fastapi",
    "asyncio",
    "transformers",
    "numpy",
    "mlx",
)
WHAT_IS_IMPORTED = """
import sys
from node.cli import main
heavy, *arguments = sys.argv[1:]
try:
    main(arguments)
except SystemExit as ended:
    assert not ended.code
print(*sorted(set(heavy.split(",")) & sys.modules.keys()), file=sys.stderr)
"""


def test_the_models_are_listed_by_what_that_needs(tmp_path: Path) -> None:
    make_model(tmp_path, "tiny")
    command = [sys.executable, "-c", WHAT_IS_IMPORTED, ",".join(HEAVY), "models"]
    done = subprocess.run(
        [*command, "--home", str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "tiny" in done.stdout
    assert done.stderr.split() == []
