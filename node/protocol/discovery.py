"""The announcement of an agent in the local network, by DNS-SD.

Anybody can announce anything: a router takes an announcement as a hint of where an agent may be,
and trusts only the certificate that it finds there. An announcement has no secret, and nothing that
a stranger in the network should not know: models are told to paired routers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from node.protocol.names import is_name

SERVICE_TYPE = "_mlxfleet._tcp.local."
_VALUE_BYTES = 200
"""A string of a TXT record has at most 255 bytes, its key included."""
_MOST_MEMORY_GIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Announcement:
    """The TXT record of an agent."""

    node_id: str
    version: str
    protocol: str
    chip: str = ""
    memory_gib: int = 0
    host: str = ""
    """The name by which other machines reach it, if they resolve names of the local network."""

    def to_txt(self) -> dict[str, str]:
        fields = {
            "id": self.node_id,
            "v": self.version,
            "p": self.protocol,
            "chip": self.chip,
            "mem": str(self.memory_gib),
            "host": self.host,
        }
        return {key: _clipped(value) for key, value in fields.items()}

    @classmethod
    def from_txt(cls, txt: Mapping[bytes, bytes | None]) -> Announcement | None:
        """Returns None for a record that no agent would announce."""
        node_id = _text(txt, b"id")
        memory = _text(txt, b"mem")
        if not node_id:
            return None
        return cls(
            node_id,
            _text(txt, b"v"),
            _text(txt, b"p"),
            _text(txt, b"chip"),
            min(int(memory), _MOST_MEMORY_GIB) if memory.isdecimal() else 0,
            _text(txt, b"host"),
        )


def _clipped(value: str) -> str:
    return value.encode()[:_VALUE_BYTES].decode(errors="ignore")


def _text(txt: Mapping[bytes, bytes | None], key: bytes) -> str:
    """The value of that key; empty if it is missing or cannot be shown."""
    value = (txt.get(key) or b"").decode(errors="replace")
    return value if is_name(value) else ""
