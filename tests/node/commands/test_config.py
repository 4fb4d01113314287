"""`node-agent config`."""

from pathlib import Path

import pytest

from node.commands import config
from node.settings import sources


def test_a_template_is_made_and_is_without_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = sources({"home": tmp_path}, {})
    config.init(own, force=False)
    assert config.check(own)
    assert "No mistakes; 1 of " in capsys.readouterr().out
    assert config.show(own, as_json=False)
    assert "# keep_alive: 1h" in capsys.readouterr().out


def test_values_are_shown_as_they_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.toml"
    text = (
        'memory_limit = "80%"\n'
        'keep_alive = ["2h", "qwen=forever"]\n'
        'default_chat_template_kwargs = ["qwen={\\"a\\": [1]}"]\n'
        'warm = ["qwen=/a/b.jsonl"]\n'
        'tool_parser = ["none", "qwen=hermes"]\n'
    )
    file.write_text(text)
    assert config.show(sources({"home": tmp_path}, {}), as_json=False)
    lines = {line.partition("  #")[0].rstrip() for line in capsys.readouterr().out.splitlines()}
    assert set(text.splitlines()) <= lines


def test_mistakes_between_settings_are_found_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").write_text('script = "x"\n')
    assert not config.check(sources({"home": tmp_path}, {}))
    assert "--engine scripted" in capsys.readouterr().err
