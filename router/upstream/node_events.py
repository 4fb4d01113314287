"""Reads the lines of an agent's event stream; each event is accepted whole or not at all."""

import logging

import msgspec

from node.protocol.messages import (
    Began,
    CancelMarked,
    Event,
    Finished,
    Stored,
    decode_event,
)
from serving.log_limiter import LogLimiter

log = logging.getLogger("mlx_fleet.nodes")

_TAGS = {str(kind.__struct_config__.tag) for kind in (Finished, Began, Stored, CancelMarked)}
"""Independent events: later ones stay true if one of them is dropped. Without a status or a change
of prefixes, the router's view of the node would be wrong."""


class _Tagged(msgspec.Struct):
    type: str


_decode_tag = msgspec.json.Decoder(_Tagged).decode


class NodeEvents:
    """Decodes the events of one node."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._log_limiter = LogLimiter()

    def read(self, line: bytes) -> Event | None:
        """Decodes the event; logs and returns None for an independent one that exceeds the
        protocol's bounds. Raises `msgspec.MsgspecError` or `UnicodeDecodeError` for every other
        invalid line."""
        try:
            event: Event = decode_event(line)
        except msgspec.ValidationError as error:
            kind = _decode_tag(line).type
            if kind not in _TAGS:
                raise
            if self._log_limiter.due(kind):
                more = self._log_limiter.suppressed(kind)
                log.warning("%s sent a bad %r event, dropped: %s%s", self._url, kind, error, more)
            return None
        return event
