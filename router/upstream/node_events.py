"""Reads the lines of an agent's event stream; each event is accepted whole or not at all."""

import logging

import msgspec

from node.protocol.messages import (
    Began,
    CancelMarked,
    Event,
    Finished,
    Stored,
)
from node.protocol.versions import Wire, kind_of_event
from serving.log_limiter import LogLimiter

log = logging.getLogger("mlx_fleet.nodes")

_TAGS = {str(kind.__struct_config__.tag) for kind in (Finished, Began, Stored, CancelMarked)}
"""Independent events: later ones stay true if one of them is dropped. Without a status or a change
of prefixes, the router's view of the node would be wrong."""


class NodeEvents:
    """Decodes the events of one node."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._log_limiter = LogLimiter()

    def read(self, line: bytes, wire: Wire) -> Event | None:
        """Decodes the event. Returns None for one of a kind that this router does not know, and
        logs that, and for an independent one that exceeds the protocol's bounds. Raises
        `msgspec.MsgspecError` or `UnicodeDecodeError` for every other invalid line."""
        try:
            event = wire.decode_event(line)
        except msgspec.ValidationError as error:
            kind = kind_of_event(line)
            if kind not in _TAGS:
                raise
            self._dropped(kind, f"a bad {kind!r} event, dropped: {error}")
            return None
        if event is None:
            self._dropped("", f"a {kind_of_event(line)[:64]!r} event, which is unknown here")
        return event

    def _dropped(self, kind: str, what: str) -> None:
        if self._log_limiter.due(kind):
            log.warning("%s sent %s%s", self._url, what, self._log_limiter.suppressed(kind))
