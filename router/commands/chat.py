"""`router chat`: one prompt, or a conversation."""

import sys
from contextlib import ExitStack

from router.commands import console
from router.commands.chat_request import Chat, ChatResponse, Message, summary
from router.commands.client import CommandFailed
from serving.terminal.output import put

_LEAVE = ("/exit", "/quit", "/bye")


def run(chat: Chat, model: str, prompt: str | None, system: str | None) -> None:
    """Sends the prompt, or the text on standard input, or a conversation typed line by line."""
    history: list[Message] = [{"role": "system", "content": system}] if system else []
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
        if not prompt:
            raise CommandFailed("There is no prompt: give one as an argument or on standard input.")
    if prompt is None:
        converse(chat, model, history)
    else:
        ask(chat, model, [*history, {"role": "user", "content": prompt}])


def ask(
    chat: Chat, model: str, messages: list[Message], temperature: float | None = None
) -> ChatResponse:
    """Prints the response as it arrives, then its summary."""
    with _Reader(model) as reader:
        response = chat.ask(model, messages, reader, temperature)
    console.print_line(summary(response), style="dim")
    return response


class _Reader:
    """Shows a progress message until the response begins, then the response as it arrives."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._waiting = ExitStack()
        self._has_text = False

    def __enter__(self) -> "_Reader":
        self._show = self._waiting.enter_context(console.progress(f"waiting for {self._model}"))
        return self

    def __exit__(self, *_error: object) -> None:
        self._waiting.close()
        if self._has_text:
            put()

    def comment(self, words: str) -> None:
        self._show(words)

    def text(self, text: str) -> None:
        self._waiting.close()
        self._has_text = True
        _print_text(text)


def converse(chat: Chat, model: str, history: list[Message]) -> None:
    """Runs a conversation until the end of input; Ctrl-C ends a response, not the conversation."""
    console.print_line(f"Chatting with {model}; /exit or Ctrl-D ends it.", style="dim")
    while True:
        try:
            line = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            put()
            return
        if line in _LEAVE:
            return
        if line:
            history = _turn(chat, model, [*history, {"role": "user", "content": line}])


def _turn(chat: Chat, model: str, messages: list[Message]) -> list[Message]:
    """Returns the history after one more prompt; without the prompt if it got no response."""
    try:
        response = ask(chat, model, messages)
    except CommandFailed as error:
        console.print_error(error.message, style="red")
        return messages[:-1]
    except KeyboardInterrupt:
        return messages[:-1]
    return [*messages, {"role": "assistant", "content": response.text}]


def _print_text(text: str) -> None:
    if sys.stdout.isatty():
        put(text, end="")
    else:
        sys.stdout.write(text)
        sys.stdout.flush()
