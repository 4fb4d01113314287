"""Chat requests of a conversation to an agent."""

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from node.commands.agent_client import CommandFailed, ServerAddress, ask, posting
from node.commands.residency.ps import agent_status
from node.protocol.messages import (
    IN_MEMORY,
    NOT_LOADED,
    PATH_LOAD,
    ModelCommand,
    ModelState,
    NodeStatus,
)
from node.protocol.paths import PATH_CHAT
from serving.chat.stream import (
    Message,
    Piece,
    ResponseFailed,
    StreamedChat,
    chat_body,
    summary,
)
from serving.terminal.bars import progress

POLL_S = 0.5


class AgentChat:
    """The conversation's side of an agent. Every failure is a `ResponseFailed`."""

    def __init__(self, server: ServerAddress) -> None:
        self._server = server

    def models(self) -> list[str]:
        """The models that the agent can serve."""
        with _failing():
            return servable(agent_status(self._server))

    def stream(self, model: str, messages: Sequence[Message]) -> Generator[Piece, None, None]:
        """Yields a response as it arrives, and its summary. Raises `ResponseFailed`, also if it
        ends early."""
        streamed = StreamedChat(time.monotonic())
        with _failing(), posting(self._server, PATH_CHAT, chat_body(model, messages)) as response:
            for line in response.iter_lines():
                yield from streamed.read(line, time.monotonic())
            streamed.require_whole()
        yield Piece("summary", summary(streamed))


def servable(status: NodeStatus) -> list[str]:
    """Names of the models that are complete on the agent's disk."""
    return [each.name for each in status.models if each.state in (*IN_MEMORY, *NOT_LOADED)]


def load(server: ServerAddress, model: str) -> None:
    """Loads the model, and shows how far that is. Raises `CommandFailed`."""
    over = threading.Event()
    with progress(f"loading {model}") as show:

        def watch() -> None:
            while not over.wait(POLL_S):
                try:
                    status = agent_status(server)
                except CommandFailed:
                    continue  # the load itself reports the error
                for each in status.models:
                    if each.name == model and each.state is ModelState.LOADING:
                        show(f"loading {model} {each.progress or 0.0:.0%}")

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            ask(server, PATH_LOAD, NodeStatus, ModelCommand(model))
        finally:
            over.set()
            # Bounded, since a request of the thread may wait for the agent.
            thread.join(POLL_S)


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except CommandFailed as failed:
        raise ResponseFailed(failed.message) from failed
