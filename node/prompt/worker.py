"""A render process: `python -m node.prompt.worker FD`, started by the agent.

FD is an inherited socket to the agent. The main thread reads it, so that the process ends with the
agent whatever a template does; another thread makes prompts, one at a time.
"""

import logging
import os
import queue
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from node.errors import BadRequest, ContextTooLong, LoadFailure
from node.prompt.chain_positions import position_tokens
from node.prompt.prompt import Prompt
from node.prompt.renderer import PromptRenderer, load_tokenizer
from node.prompt.template.chat_template import import_transformers
from node.prompt.template.item_ends import PromptLayout
from node.prompt.wire import (
    LENGTH,
    Command,
    CountPositions,
    Failed,
    Opened,
    OpenTemplate,
    OpenTokenizer,
    PositionCounts,
    Render,
    Rendered,
    RenderRefused,
    RenderResponse,
    decode_command,
    pack,
    response_frame,
)
from serving.logs.logs import log_like_parent
from serving.terminal.error_text import error_text

logger = logging.getLogger("node.prompt.worker")


class RenderWorker:
    """Loads the tokenizer and the template of one model, and makes its prompts."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._folder = Path()
        self._tokenizer: Any = None
        self._renderer: PromptRenderer | None = None
        self._layout: PromptLayout | None = None
        """Layout of the last prompt."""

    def run(self) -> None:
        """Serves until the agent closes its end, and then ends the process at once."""
        threading.Thread(target=self._serve, name="render", daemon=True).start()
        # Does not wait for the thread, since a template may never end.
        with self._link.makefile("rb") as incoming:
            while len(head := incoming.read(LENGTH.size)) == LENGTH.size:
                (length,) = LENGTH.unpack(head)
                self._commands.put(decode_command(incoming.read(length)))
        os._exit(0)

    def _serve(self) -> None:
        # First, so that a process that was started ahead has the import behind it.
        import_transformers()
        while True:
            response = self._respond(self._commands.get())
            try:
                self._link.sendall(response_frame(response))
            except OSError:
                os._exit(0)

    def _respond(self, command: Command) -> RenderResponse:
        try:
            return self._do(command)
        except ContextTooLong as exc:
            return RenderRefused(exc.message, exc.param, exc.overflow)
        except BadRequest as exc:
            return RenderRefused(_printable(exc.message), exc.param)
        except LoadFailure as exc:
            return Failed(_printable(exc.message))
        except Exception as exc:
            logger.exception("A prompt cannot be made.")
            return Failed(_printable(f"The prompt cannot be made: {error_text(exc)}."))

    def _do(self, command: Command) -> RenderResponse:
        match command:
            case OpenTokenizer(folder):
                self._folder, self._tokenizer = folder, load_tokenizer(folder)
                return Opened()
            case OpenTemplate(formats):
                self._renderer = PromptRenderer(self._folder, formats, tokenizer=self._tokenizer)
                return Opened(self._renderer.formats)
            case Render():
                return self._rendered(command)
            case CountPositions(chain):
                return PositionCounts(pack(position_tokens(chain, self._layout)))

    def _rendered(self, command: Render) -> Rendered:
        assert self._renderer is not None
        make = self._renderer.render_shared if command.shared else self._renderer.render
        prompt: Prompt = make(command.request, command.context_tokens)
        self._layout = prompt.layout
        return Rendered(
            pack(prompt.tokens),
            pack(prompt.boundaries),
            prompt.reusable_tokens,
            pack(prompt.dropped_output),
            prompt.formats,
            prompt.tail,
        )


def _printable(text: str) -> str:
    """Escapes lone surrogates, which a message cannot carry."""
    return text.encode("utf-8", "backslashreplace").decode()


def main(arguments: list[str]) -> None:
    """Runs the render process."""
    # Ctrl-C goes to the whole process group; the agent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log_like_parent()
    with socket.socket(fileno=int(arguments[0])) as link:
        RenderWorker(link).run()


if __name__ == "__main__":
    main(sys.argv[1:])
