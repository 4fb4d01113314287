"""No text of others steers a terminal or makes a line of a log."""

from __future__ import annotations

import ast
import io
import json
import unicodedata
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import serving
from serving.terminal.output import (
    MOST_CHARS,
    put,
    put_json,
    shown,
    shown_json,
    shown_lines,
)
from serving.terminal.screen import Screen

PRINTING = (
    *("print", "typer.echo", "click.echo", "Console", "sys.stdout.write", "sys.stderr.write"),
    *("traceback.print_exc", "traceback.print_exception", "logging.Formatter"),
)
STEERING = "a\x1b[31mb\r\n\tc\0d\x9b2Je\u202ef\u2066g\u2028h\ufeffi\ud800j\x7fk\u200bl\U000e0041m"
PLAIN = "mlx-community/Qwen3-8B-4bit, modèle 模型 👩‍👩‍👧 \u05d0\u200f →"


def steers(text: str, allowed: str = "") -> list[str]:
    """The characters that a terminal does something else with than show them."""
    joiners = "\u200c\u200d\u200e\u200f"
    bad = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return [c for c in text if unicodedata.category(c) in bad and c not in joiners + allowed]


def test_what_steers_is_spelled_and_everything_else_stays() -> None:
    assert shown(PLAIN) == shown_lines(PLAIN) == shown_json(PLAIN) == PLAIN
    assert steers(shown(STEERING)) == []
    assert shown("a\x1b[31m\r\n\u202eb") == r"a\x1b[31m\r\n\u202eb"
    assert steers(shown_lines(STEERING), "\n\t") == []
    assert shown_lines("a\n\tb\rc") == "a\n\tb\\rc"


@pytest.mark.parametrize("code", [*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x2028, 0x206F])
def test_no_single_control_character_gets_through(code: int) -> None:
    assert steers(shown(chr(code)), "\u061c\u206f") == []


def test_a_long_text_is_clipped() -> None:
    text = shown("x" * 100_000)
    assert len(text) == MOST_CHARS and text.endswith("…")


def test_json_still_means_the_same() -> None:
    value = {"name": STEERING.replace("\ud800", ""), "plain": PLAIN}
    text = shown_json(json.dumps(value, indent=2, ensure_ascii=False))
    assert steers(text, "\n") == []
    assert json.loads(text) == value


def test_lines_are_printed_filtered(capsys: pytest.CaptureFixture[str]) -> None:
    put(f"name {STEERING}")
    put(f"name {STEERING}", err=True, end="")
    put_json(json.dumps(STEERING.replace("\ud800", ""), ensure_ascii=False))
    printed = capsys.readouterr()
    assert steers(printed.out + printed.err, "\n\t") == []
    assert printed.err.startswith("name a\\x1b[31mb")


def test_a_table_draws_its_own_colours_only() -> None:
    stream = io.StringIO()
    screen = Screen(file=stream, force_terminal=True, color_system="standard", width=200)
    table = Table("head \x1b[2J")
    table.add_row(Text("red", style="red"))
    table.add_row(f"cell {STEERING}")
    table.add_row("[red]no markup[/]")
    screen.print(table)
    screen.print(f"a sentence {STEERING}")
    drawn = stream.getvalue()
    assert "\x1b[31mred" in drawn and "[red]no markup[/]" in drawn
    for escape in ("\x1b[2J", "\x1b[31mb", "\x9b", "\0", "\u202e", "\r"):
        assert escape not in drawn
    assert r"\x1b[2J" in drawn


def test_nothing_else_prints() -> None:
    """All that the command lines print goes through here."""
    root = Path(serving.__file__).parent.parent
    others = []
    for folder in ("router", "node", "registry", "serving"):
        for file in (root / folder).rglob("*.py"):
            for each in ast.walk(ast.parse(file.read_text())):
                name = ast.unparse(each.func) if isinstance(each, ast.Call) else ""
                if name in PRINTING:
                    others.append(f"{file.relative_to(root)}: {name}")
    assert sorted(set(others)) == [
        "node/engine/gguf/convert.py: sys.stdout.write",  # to the command that runs it
        "serving/chat/loop.py: sys.stdout.write",  # where it is no terminal: a response as it is
        "serving/terminal/output.py: print",
    ]
