"""`node-agent token` shows what a router needs, and nothing else."""

from pathlib import Path

import pytest

from node.app import load_token
from node.cli import main
from node.settings import Settings


def run(capsys: pytest.CaptureFixture[str], home: Path) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["token", "--home", str(home)])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_the_token_is_the_whole_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token, _ = load_token(Settings(home=tmp_path))
    assert run(capsys, tmp_path) == (0, f"{token}\n", "")


def test_none_is_made_where_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = run(capsys, tmp_path)
    assert (code, out) == (1, "")
    assert error.startswith(f"node-agent: There is no token in {tmp_path} yet: `node-agent serve`")
    assert not list(tmp_path.iterdir())
