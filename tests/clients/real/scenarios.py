"""Sessions of a client with the fleet, each with what the model writes in it and what must come of
it."""

import struct
import zlib
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.clients.real.programs import ClaudeCode, Client
from tests.clients.real.wire import Wire

KEY_REFUSED_S = 5.0
"""Within so long after its first request a client reports that its key is wrong."""
CONFIGURED_TOKENS = 200_000
"""The context length that clients are configured with."""
_LINE = "The quick brown fox jumps over the lazy dog, line %d of many.\n"
_COMPACTED = "The user wants the files read, and both were."


class Ran(NamedTuple):
    """One run of a client's command."""

    status: int
    output: str
    """With standard error."""
    ended_s: float
    """Monotonic."""


class Session(NamedTuple):
    """A client and its fleet, while a scenario runs."""

    client: Client
    work: Path
    wire: Wire
    run: Callable[..., Ran]
    """`run(prompt, goes_on=…)`"""
    talk: Callable[[str], Ran]
    """`talk(lines)`: a conversation in one run, of a client that has them."""
    configure_context: Callable[[], None]
    """Tells the client the model's own context length, in place of a larger one."""


@dataclass(frozen=True, slots=True)
class Scenario:
    outputs: Callable[[Client], list[str]]
    """Returns the texts that the model writes, one for each answer."""
    act: Callable[[Session], str]
    """Runs it; a line for people of what was seen. Raises `AssertionError`."""
    context_tokens: Mapping[str, int] = field(default_factory=dict)
    """The model's context, by client, where the client is configured with more at first."""
    is_key_right: bool = True
    clients: Container[str] = ("claude", "codex", "opencode")


# --- a loop of tools -----------------------------------------------------------------------------


def _loop_outputs(client: Client) -> list[str]:
    return [
        "I write it.\n" + client.write("note.txt", "first line\nsecond line\n"),
        client.read("note.txt"),
        client.edit("note.txt", "second", "edited"),
        "The note is edited.",
    ]


def _loop(session: Session) -> str:
    ran = session.run("Write a note, read it and edit it.")
    assert ran.status == 0, ran.output
    assert "The note is edited." in ran.output, ran.output
    assert (session.work / "note.txt").read_text() == "first line\nedited line\n"
    assert set(session.wire.statuses) == {200}, session.wire.statuses
    return f"{len(session.wire.posts())} requests, file on disk as edited"


# --- a call that breaks off ----------------------------------------------------------------------


def _broken_outputs(client: Client) -> list[str]:
    half = client.write("note.txt", "half of it, " * 200)
    broken = half.replace("}}\n</tool_call>", ", so }</tool_call>")
    assert broken != half
    return [broken, client.write("note.txt", "all of it"), "The note is written."]


def _broken(session: Session) -> str:
    ran = session.run("Write a note.")
    assert ran.status == 0, ran.output
    assert "The note is written." in ran.output, ran.output
    assert (session.work / "note.txt").read_text() == "all of it"
    return f"retried by itself, {len(session.wire.posts())} requests, nothing half written"


# --- a call that is cut --------------------------------------------------------------------------


def _cut_outputs(client: Client) -> list[str]:
    return [client.write("note.txt", "half of it, " * 8000), *["I stop here."] * 9]


def _cut(session: Session) -> str:
    ran = session.run("Write a note.")
    # Codex ends its run with that.
    assert "I stop here." in ran.output or "max_output_tokens" in ran.output, ran.output
    assert not (session.work / "note.txt").exists()
    assert session.wire.statuses[0] == 200, session.wire.statuses
    return "nothing half written"


# --- a picture in the history --------------------------------------------------------------------


def _image_outputs(client: Client) -> list[str]:
    return [client.look_at("picture.png"), "I have looked.", "That was another turn."]


def _image(session: Session) -> str:
    (session.work / "picture.png").write_bytes(_png())
    first = session.run("Look at picture.png.")
    assert first.status == 0 and "I have looked." in first.output, first.output
    second = session.run("And now?", goes_on=True)
    assert second.status == 0 and "That was another turn." in second.output, second.output
    assert set(session.wire.statuses) == {200}, session.wire.statuses
    sent = session.wire.sent.count(b"iVBORw0KGgo")
    # OpenCode itself leaves pictures out for a model that is not configured as taking them.
    assert sent >= 2 or session.client.name == "opencode", sent
    return f"picture sent {sent} times, two turns after it answered"


# --- a picture that was pasted, and refused ------------------------------------------------------


def _pasted(session: Session) -> str:
    client = session.client
    assert isinstance(client, ClaudeCode)
    ran = session.talk(client.user_line("What is this?", _png()) + client.user_line("Never mind."))
    assert "leave the image out" in ran.output, ran.output
    assert "Gladly." in ran.output, ran.output
    again = session.run("And now?", goes_on=True)
    assert again.status == 0 and "That was another turn." in again.output, again.output
    statuses = session.wire.statuses
    assert statuses.count(400) == 1, statuses
    return "400 reported once, and the message after the picture is answered"


def _png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    pixels = zlib.compress(b"".join(b"\0" + b"\xff\0\0" * 8 for _ in range(8)))
    head = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head), chunk(b"IDAT", pixels), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


# --- a prompt that is too long -------------------------------------------------------------------


def _overflow_outputs(client: Client) -> list[str]:
    reads = [client.read("a.txt"), client.read("b.txt")]
    return [*reads, f"<summary>{_COMPACTED}</summary>", "Done after compaction.", "And on it goes."]


def _overflow(session: Session) -> str:
    text = "".join(_LINE % number for number in range(400))
    for name in ("a.txt", "b.txt"):
        (session.work / name).write_text(text)
    ran = session.run("Read a.txt and b.txt.")
    if session.client.name == "codex":
        # It knows what the refusal means, and compacts by the length that it is configured with.
        assert "ran out of room in the model's context window" in ran.output, ran.output
        session.configure_context()
        ran = session.run("Go on.", goes_on=True)
    assert "Done after compaction." in ran.output, ran.output
    statuses = session.wire.statuses
    refused = statuses.index(400)
    assert set(statuses) == {200, 400} and 200 in statuses[refused:], statuses
    again = session.run("And now?", goes_on=True)
    assert again.status == 0 and "And on it goes." in again.output, again.output
    return "400 reported, compacted, answered, and a turn after that"


# --- a wrong key ---------------------------------------------------------------------------------


def _wrong_key(session: Session) -> str:
    ran = session.run("Hello.")
    assert ran.status != 0, ran.output
    assert "API key is missing or wrong" in ran.output, ran.output
    posts = session.wire.posts()
    reported_s = ran.ended_s - posts[0]
    assert reported_s <= KEY_REFUSED_S, (
        f"reported after {reported_s:.1f} s and {len(posts)} requests"
    )
    return f"reported after {reported_s:.1f} s, {len(posts)} requests"


_SHORT = {"claude": 16_000, "codex": 9_500, "opencode": 13_000}
"""Contexts that have room for a client's first prompt and little more, in tokens."""
SCENARIOS: Mapping[str, Scenario] = {
    "loop": Scenario(_loop_outputs, _loop),
    "broken": Scenario(_broken_outputs, _broken),
    "cut": Scenario(_cut_outputs, _cut, _SHORT),
    "image": Scenario(_image_outputs, _image),
    "pasted": Scenario(
        lambda client: ["Gladly.", "That was another turn."], _pasted, clients=("claude",)
    ),
    "overflow": Scenario(_overflow_outputs, _overflow, _SHORT),
    "wrong-key": Scenario(lambda client: ["Never sent."], _wrong_key, is_key_right=False),
}
