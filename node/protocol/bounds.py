"""How large what routers and agents say to each other may be. What exceeds it is not decoded, so
that nobody behind has to ask whether a number fits a register, a column or a clock."""

from typing import Annotated

from msgspec import Meta

MOST = 2**53
"""Of a whole number: all readers of JSON, and all columns, hold it exactly."""
MAX_MODELS = 500
"""Of one node."""
MAX_TOKENS = 1_000_000_000
"""Of one request, and of what it was answered: thousands of millions of them can be summed in 64
bits."""
NAME_CHARS = 256
ORIGIN_CHARS = 200
PROOF_CHARS = 64
MAX_EVENT_BYTES = 1024 * 1024
"""Of one line of an event stream."""

Count = Annotated[int, Meta(ge=0, le=MOST)]
"""Of whatever: bytes, tokens, requests."""
Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
"""No more than thirty years."""
UnixSeconds = Annotated[float, Meta(ge=0.0, le=253_402_300_799.0)]
"""Up to the year 9999, the last that a date can have."""
LEAST_RATE, MOST_RATE = 1e-3, 1e7
"""Of something a second; a step of decoding takes one over that."""
MAX_DEPTHS = 32
"""Classes of depth, each twice as deep as the one before it."""
Rate = Annotated[float, Meta(ge=LEAST_RATE, le=MOST_RATE)]
StepSeconds = Annotated[float, Meta(ge=1.0 / MOST_RATE, le=1.0 / LEAST_RATE)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS)]
"""Of a model; which characters it may have says `node.protocol.names`."""
Id = Annotated[str, Meta(max_length=128)]
Origin = Annotated[str, Meta(max_length=ORIGIN_CHARS)]
Proof = Annotated[str, Meta(max_length=PROOF_CHARS)]
Word = Annotated[str, Meta(max_length=200)]
"""A version, a chip, the name of a parser."""
Sentence = Annotated[str, Meta(max_length=2000)]
"""For people."""


def clipped(sentence: str) -> str:
    """What of it goes into a `Sentence`."""
    return sentence if len(sentence) <= 2000 else sentence[:1999] + "…"
