"""Notes requests that were refused: wrong keys in the log, admin requests in the audit log, both
limited, so that nobody can fill either with them."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from registry import audit
from registry.db import Registry, WriteSession
from registry.errors import RegistryError
from registry.records import AuditRecord
from router.limits.account import Bucket
from serving.log_limiter import LogLimiter

log = logging.getLogger("mlx_fleet.router")

ENTRIES_A_MINUTE = 30
"""Most audit entries a minute about admin requests that failed."""
_WRONG_KEYS = "wrong keys"
_MOST_CHARS = 500


class Refusals:
    """Counts what it leaves out of the logs."""

    def __init__(self, registry: Registry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        # One line for all addresses: a stranger may have any number of them.
        self._log_limiter = LogLimiter(clock)
        self._entries = Bucket()
        self._left_out = 0

    def wrong_key(self, client: str, path: str) -> None:
        """Logs a request without a valid key, once a minute."""
        if self._log_limiter.due(_WRONG_KEYS):
            more = self._log_limiter.suppressed(_WRONG_KEYS)
            log.warning(
                "refused a request without a valid key from %s at %.100r%s", client, path, more
            )

    async def admin_failed(self, entry: AuditRecord) -> None:
        """Writes an audit entry about an admin request that failed, unless there have been too many
        of them."""
        self._entries.drain(ENTRIES_A_MINUTE, self._clock())
        if self._entries.wait_s(ENTRIES_A_MINUTE, 1.0):
            self._left_out += 1
            return
        self._entries.used += 1.0
        more = f" ({self._left_out:,} more were not noted)" if self._left_out else ""
        left_out, self._left_out = self._left_out, 0
        noted = replace(entry, detail=entry.detail[:_MOST_CHARS] + more)

        async def add(session: WriteSession) -> None:
            await audit.add(session, noted)

        try:
            await self._registry.write(add)
        except RegistryError as error:
            self._left_out += left_out + 1
            log.error("an audit entry cannot be written: %s", error)
