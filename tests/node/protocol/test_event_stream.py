"""Router and agent frame their events with the same functions, and send the same bytes in an idle
interval."""

from node.dialects.anthropic.response import MessageWriter
from node.dialects.chat.response import ChatWriter
from node.dialects.completions.completions import CompletionWriter
from node.dialects.responses.events import ResponseWriter
from node.protocol.event_stream import ANTHROPIC_PING, KEEP_ALIVE, event, event_head
from node.protocol.paths import ApiDialect
from router.client import sse


def test_an_event_has_its_data_and_perhaps_a_type() -> None:
    assert event(b"{}") == b"data: {}\n\n"
    assert event(b"{}", "error") == b"event: error\ndata: {}\n\n"
    assert event_head("error") + b"{}\n\n" == event(b"{}", "error")


def test_an_idle_interval_looks_the_same_from_both_sides() -> None:
    assert MessageWriter.keep_alive == sse.ping(ApiDialect.ANTHROPIC) == ANTHROPIC_PING
    for writer in (ChatWriter, CompletionWriter, ResponseWriter):
        assert writer.keep_alive == KEEP_ALIVE
    assert sse.ping(ApiDialect.OPENAI) == sse.ping(ApiDialect.RESPONSES) == KEEP_ALIVE
