from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from serving.chat import loop
from serving.chat.line_editor import _match
from serving.chat.loop import ChatLoop, print_response
from serving.chat.stream import Message, Piece, ResponseFailed
from tests.terminal import Terminal

HELLO = [Piece("text", "Hel"), Piece("text", "lo"), Piece("summary", "node mini")]
Script = Sequence[Piece | BaseException]


class ScriptedBackend:
    """Responds as scripted, and keeps the requests."""

    def __init__(self, *scripts: Script) -> None:
        self.seen: list[tuple[str, list[Message]]] = []
        self.closed = 0
        self._scripts = iter(scripts)

    def models(self) -> list[str]:
        return ["tiny", "big"]

    def stream(self, model: str, messages: Sequence[Message]) -> Generator[Piece, None, None]:
        self.seen.append((model, list(messages)))
        try:
            for piece in next(self._scripts):
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self.closed += 1

    def prompts(self) -> list[list[str]]:
        return [[message["content"] for message in messages] for _, messages in self.seen]


def typing(*lines: str | type[BaseException]) -> Callable[[str], str]:
    """Types the lines, then ends the input."""
    left = iter(lines)

    def read(_prompt: str) -> str:
        line = next(left, EOFError)
        if isinstance(line, str):
            return line
        raise line

    return read


def converse(backend: ScriptedBackend, *lines: str | type[BaseException], **more: Any) -> ChatLoop:
    talk = ChatLoop(backend, "tiny", read_line=typing(*lines), **more)
    talk.run()
    return talk


def be_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")  # without styles


def test_each_prompt_is_sent_with_what_was_said_before() -> None:
    backend = ScriptedBackend(HELLO, HELLO)
    converse(backend, "one", "", "two", "/bye", "three")
    assert backend.prompts() == [["one"], ["one", "Hello", "two"]]


def test_an_error_ends_neither_the_conversation_nor_its_history(
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken: Script = [Piece("text", "Hal"), ResponseFailed("The engine died.")]
    backend = ScriptedBackend(HELLO, broken, HELLO)
    converse(backend, "one", "two", "three")
    assert backend.prompts()[-1] == ["one", "Hello", "three"]
    assert "The engine died." in capsys.readouterr().err


def test_ctrl_c_ends_a_response_and_keeps_what_came_of_it() -> None:
    backend = ScriptedBackend([Piece("text", "Hal"), KeyboardInterrupt()], HELLO)
    converse(backend, "one", "two")
    assert backend.prompts()[-1] == ["one", "Hal", "two"]
    assert backend.closed == 2


def test_a_response_without_text_leaves_no_prompt_behind() -> None:
    backend = ScriptedBackend([Piece("reasoning", "hm"), KeyboardInterrupt()], HELLO)
    converse(backend, "one", "two")
    assert backend.prompts()[-1] == ["two"]


def test_ctrl_c_at_the_prompt_drops_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    backend = ScriptedBackend(HELLO)
    converse(backend, KeyboardInterrupt, "one")
    assert backend.prompts() == [["one"]]
    assert "/bye or Ctrl-D ends" in capsys.readouterr().out


def test_clear_forgets_everything_but_the_system_prompt() -> None:
    backend = ScriptedBackend(HELLO, HELLO)
    converse(backend, "one", "/clear", "two", system="Be kind.")
    assert backend.prompts() == [["Be kind.", "one"], ["Be kind.", "two"]]


def test_another_model_continues_the_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    backend = ScriptedBackend(HELLO, HELLO)
    converse(backend, "one", "/model big", "two", "/model")
    assert [model for model, _ in backend.seen] == ["tiny", "big"]
    assert backend.prompts()[-1] == ["one", "Hello", "two"]
    assert "  tiny\n* big\n" in capsys.readouterr().out


def test_a_model_that_does_not_exist_is_an_error_and_changes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert converse(ScriptedBackend(), "/model huge").model == "tiny"
    assert "There is no model huge" in capsys.readouterr().err


def test_help_lists_the_commands_and_an_unknown_one_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    converse(ScriptedBackend(), "/help", "/hlep")
    captured = capsys.readouterr()
    assert all(word in captured.out for word in ("/clear", "/model NAME", "/bye", "Ctrl-C"))
    assert "There is no command /hlep; /help lists them." in captured.err


def test_a_path_is_a_prompt_and_no_command() -> None:
    backend = ScriptedBackend(HELLO)
    converse(backend, "/etc/hosts has a wrong line")
    assert backend.prompts() == [["/etc/hosts has a wrong line"]]


def test_quotes_make_a_prompt_of_several_lines() -> None:
    backend = ScriptedBackend(HELLO, HELLO)
    converse(backend, '"""one', "", 'two"""', '"""three"""')
    assert backend.prompts() == [["one\n\ntwo"], ["one\n\ntwo", "Hello", "three"]]


def test_reasoning_is_shown_in_a_terminal_apart_from_the_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_a_terminal(monkeypatch)
    backend = ScriptedBackend([Piece("reasoning", "two plus "), Piece("reasoning", "two"), *HELLO])
    assert print_response(backend.stream("tiny", []), "tiny") == "Hello"
    assert capsys.readouterr().out == "two plus two\nHello\nnode mini\n"


def test_a_pipe_gets_no_reasoning(capsys: pytest.CaptureFixture[str]) -> None:
    backend = ScriptedBackend([Piece("reasoning", "two plus two"), *HELLO])
    print_response(backend.stream("tiny", []), "tiny")
    assert capsys.readouterr().out == "Hello\nnode mini\n"


def test_progress_is_shown_until_the_response_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    @contextmanager
    def progress(what: str) -> Iterator[Callable[[str], None]]:
        seen.append(what)
        yield seen.append
        seen.append("over")

    monkeypatch.setattr(loop, "progress", progress)
    backend = ScriptedBackend([Piece("comment", "loading tiny 43 %"), *HELLO])
    print_response(backend.stream("tiny", []), "tiny")
    assert seen == ["waiting for tiny", "loading tiny 43 %", "over"]


def test_a_model_cannot_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_a_terminal(monkeypatch)
    pieces = [Piece("comment", "load\x1b[2J"), Piece("reasoning", "r\x1b[2J")]
    pieces += [Piece("text", piece) for piece in ("a\x1b", "[2Jb\r", "\n\tc\x9b")]
    print_response(ScriptedBackend(pieces).stream("m\x1b[2J", []), "m\x1b[2J")
    assert capsys.readouterr().out == "r\\x1b[2J\na\\x1b[2Jb\\r\n\tc\\x9b\n"


def test_tab_completes_commands() -> None:
    words = ["/help", "/model"]
    assert [_match(words, "/m", at) for at in (0, 1)] == ["/model", None]
    assert _match(words, "", 0) is None


PROGRAM = """
import signal
from serving.chat.loop import ChatLoop
from serving.chat.stream import Piece

class Endless:
    def models(self):
        return ["tiny"]

    def stream(self, model, messages):
        yield Piece("reasoning", "thinking ")
        yield Piece("text", f"about {messages[-1]['content']}")
        if messages[-1]["content"] == "forever":
            signal.pause()

ChatLoop(Endless(), "tiny").run()
"""


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal(PROGRAM)
    yield opened
    opened.close()


@pytest.mark.timeout(30)
def test_in_a_terminal_ctrl_c_ends_a_response_and_ctrl_d_the_program(terminal: Terminal) -> None:
    terminal.read_to("> ")
    terminal.type("forever\r")
    assert "\x1b[2mthinking" in terminal.read_to("about forever")
    terminal.type("\x03")
    terminal.read_to("Stopped.")
    terminal.read_to("> ")
    terminal.type("once\r")
    terminal.read_to("about once")
    terminal.read_to("> ")
    terminal.type("\x1b[A")  # the key that recalls the line before
    terminal.read_to("once")
    terminal.type("\r")
    terminal.read_to("about once")
    terminal.read_to("> ")
    terminal.type("\x04")
    assert terminal.process.wait(10) == 0
