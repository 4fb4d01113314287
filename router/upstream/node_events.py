"""Reads the lines of an agent's event stream, of which none is taken in by halves."""

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
"""Events that stand alone: what follows is as true without one of them. Without a status or a
change of its prefixes, what the router believes of the node would be wrong."""


class _Tagged(msgspec.Struct):
    type: str


_decode_tag = msgspec.json.Decoder(_Tagged).decode


class NodeEvents:
    """Of one node."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._log_limiter = LogLimiter()

    def read(self, line: bytes) -> Event | None:
        """The event; None for one that breaks the protocol's bounds and that nothing hangs on,
        which a line of the log tells. Raises `msgspec.MsgspecError` or `UnicodeDecodeError` for
        everything else that is no event."""
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
