"""Doubles that more than one test folder needs; the scripted engine itself ships in the product."""

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of HTTPX that have no use for certificates: each would load them, for 30 ms."""
AT_ONCE_S = 5.0
"""Within so long happens what is to happen at once. A quiet machine needs some milliseconds; one
that is busy with something else makes it late, and what is not told at all takes far longer."""


@dataclass(slots=True)
class FakeClock:
    """A clock that moves only when told."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@contextmanager
def processor_time(most_s: float) -> Iterator[None]:
    """That what is inside keeps a processor busy for no longer, however busy the machine is."""
    began_s = time.process_time()
    yield
    assert time.process_time() - began_s <= most_s
