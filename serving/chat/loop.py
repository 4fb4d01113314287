"""A conversation with a model in a terminal, whatever server it runs on."""

import re
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Protocol

from rich.text import Text

from serving.chat.line_editor import editing
from serving.chat.stream import Message, Piece, ResponseFailed
from serving.short_names import ShortNames, ambiguous
from serving.terminal.bars import progress
from serving.terminal.output import put, shown, shown_lines
from serving.terminal.screen import Screen

_LEAVE = ("/bye", "/exit", "/quit")
_HELP = (
    ("/model", "the models, and which of them responds"),
    ("/model NAME", "continue with another model"),
    ("/clear", "forget the conversation, except for the system prompt"),
    ("/help, /?", "this list"),
    ("/bye", "the end; so do /exit, /quit and Ctrl-D"),
    ('"""', "begins and ends a prompt of several lines"),
    ("Ctrl-C", "stops a response, or drops the line that is being typed"),
)
_COMMAND = re.compile(r"/[\w?]*")
_QUOTES = '"""'
_PROMPT, _MORE = "> ", ". "


class ChatBackend(Protocol):
    """The server of a conversation. Failures are `ResponseFailed`."""

    def stream(self, model: str, messages: Sequence[Message]) -> Generator[Piece, None, None]:
        """Yields a response as it arrives. Closing the generator ends the request."""

    def models(self) -> Sequence[str]:
        """Returns the names that `stream` accepts."""


@dataclass(slots=True)
class Printed:
    """The text of a response that has been printed, without its reasoning."""

    text: str = ""


@dataclass(slots=True)
class ChatLoop:
    """A conversation: prompts typed line by line, responses printed as they arrive.

    Ctrl-C ends a response and keeps what has arrived; an error ends neither the conversation nor
    its history, from which only the failed prompt is missing.
    """

    backend: ChatBackend
    model: str
    system: str | None = None
    read_line: Callable[[str], str] = lambda prompt: input(prompt)
    _history: list[Message] = field(init=False, default_factory=list)

    def run(self) -> None:
        """Runs until /bye or the end of input."""
        self._clear()
        _dim(f"Chatting with {self.model}. /help shows the commands, /bye or Ctrl-D ends it.")
        with editing(self._words):
            while self._step():
                pass

    def _step(self) -> bool:
        """Reads and carries out one prompt or command; False at the end."""
        try:
            typed = self._read().strip()
        except EOFError:
            put()
            return False
        except KeyboardInterrupt:
            put()
            _dim("/bye or Ctrl-D ends the conversation.")
            return True
        first, _, rest = typed.partition(" ")
        if first in _LEAVE:
            return False
        try:
            if _COMMAND.fullmatch(first):
                self._command(first, rest.strip())
            elif typed:
                self._turn(typed.removeprefix(_QUOTES).removesuffix(_QUOTES).strip())
        except ResponseFailed as error:
            _failed(str(error))
        except KeyboardInterrupt:
            put()
        return True

    def _read(self) -> str:
        lines = [self.read_line(_PROMPT)]
        if lines[0].lstrip().startswith(_QUOTES):
            while _QUOTES not in "\n".join(lines).lstrip().removeprefix(_QUOTES):
                lines.append(self.read_line(_MORE))
        return "\n".join(lines)

    def _command(self, name: str, argument: str) -> None:
        if name == "/clear":
            self._clear()
            _dim("The conversation is forgotten.")
        elif name == "/model" and argument:
            self._switch(argument)
        elif name == "/model":
            for each in self.backend.models():
                put(f"{'*' if each == self.model else ' '} {shown(each)}")
        elif name in ("/help", "/?"):
            for keys, meaning in _HELP:
                put(f"  {keys:<12}  {meaning}")
        else:
            _failed(f"There is no command {name}; /help lists them.")

    def _switch(self, name: str) -> None:
        models = self.backend.models()
        found = (name,) if name in models else ShortNames(models).find(name)
        if not found:
            raise ResponseFailed(f"There is no model {name}; /model lists them.")
        if len(found) > 1:
            raise ResponseFailed(ambiguous(name, found))
        self.model = found[0]
        _dim(f"{self.model} continues the conversation.")

    def _clear(self) -> None:
        self._history = [{"role": "system", "content": self.system}] if self.system else []

    def _turn(self, prompt: str) -> None:
        """Adds a prompt and its response, or the part that came before Ctrl-C."""
        asked: Message = {"role": "user", "content": prompt}
        printed = Printed()
        try:
            print_response(
                self.backend.stream(self.model, [*self._history, asked]), self.model, printed
            )
        except KeyboardInterrupt:
            _dim("Stopped.")
        if printed.text:
            self._history += [asked, {"role": "assistant", "content": printed.text}]

    def _words(self) -> list[str]:
        """Words that Tab completes."""
        commands = [words.split()[0].rstrip(",") for words, _ in _HELP if words.startswith("/")]
        return [*dict.fromkeys(commands), *_LEAVE]


def print_response(
    pieces: Generator[Piece, None, None], model: str, printed: Printed | None = None
) -> str:
    """Prints a response as it arrives, reasoning dimmed and in a terminal only; returns its text.
    Until it begins, its comments are shown as progress. However it ends, the generator is closed,
    and `printed` has the text up to there."""
    printed = Printed() if printed is None else printed
    with _Printer(model, printed) as printer, closing(pieces):
        for piece in pieces:
            printer.add(piece)
    if printer.summary:
        _dim(printer.summary)
    return printed.text


class _Printer:
    """Prints one response."""

    def __init__(self, model: str, printed: Printed) -> None:
        self._model = model
        self._printed = printed
        self._waiting = ExitStack()
        self._screen = Screen(soft_wrap=True)
        self._is_reasoning = False
        self._line_is_open = False
        self.summary = ""

    def __enter__(self) -> "_Printer":
        self._show = self._waiting.enter_context(progress(f"waiting for {shown(self._model)}"))
        return self

    def __exit__(self, *_error: object) -> None:
        self._waiting.close()
        self._end_line()

    def add(self, piece: Piece) -> None:
        match piece.kind:
            case "comment":
                self._show(shown(piece.text))
            case "summary":
                self.summary = piece.text
            case "reasoning":
                self._reasoning(piece.text)
            case "text":
                self._text(piece.text)

    def _reasoning(self, text: str) -> None:
        if sys.stdout.isatty():
            self._waiting.close()
            self._is_reasoning = self._line_is_open = True
            self._screen.print(Text(shown_lines(text), style="dim"), end="")

    def _text(self, text: str) -> None:
        self._waiting.close()
        if self._is_reasoning:
            self._is_reasoning = False
            self._end_line()
        self._line_is_open = True
        self._printed.text += text
        if sys.stdout.isatty():
            put(text, end="")
        else:
            sys.stdout.write(text)
            sys.stdout.flush()

    def _end_line(self) -> None:
        if self._line_is_open:
            put()
        self._line_is_open = False


def _dim(text: str) -> None:
    Screen().print(Text(shown(text), style="dim"), soft_wrap=True)


def _failed(text: str) -> None:
    Screen(stderr=True).print(Text(shown(text), style="red"), soft_wrap=True)
