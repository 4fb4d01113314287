"""`router chat`: one prompt, or a conversation."""

import sys

from router.commands.chat_request import Chat
from router.commands.client import CommandFailed
from serving.chat.loop import ChatLoop, print_response
from serving.chat.stream import Message, ResponseFailed


def run(chat: Chat, model: str, prompt: str | None, system: str | None) -> None:
    """Sends the prompt, or the text on standard input, or a conversation typed line by line."""
    if prompt is None and sys.stdin.isatty():
        ChatLoop(chat, model, system).run()
        return
    if prompt is None:
        prompt = sys.stdin.read().strip()
        if not prompt:
            raise CommandFailed("There is no prompt: give one as an argument or on standard input.")
    history: list[Message] = [{"role": "system", "content": system}] if system else []
    respond(chat, model, [*history, {"role": "user", "content": prompt}])


def respond(
    chat: Chat, model: str, messages: list[Message], temperature: float | None = None
) -> str:
    """Prints the response as it arrives, then its summary; returns its text. Raises
    `CommandFailed`, also if it ends early."""
    try:
        return print_response(chat.stream(model, messages, temperature), model)
    except ResponseFailed as error:
        raise CommandFailed(str(error)) from error
