"""Bounds of all numbers and texts that routers and agents exchange.

A message with a value outside its bound is not decoded, so that no code behind the decoder needs to
check whether a number fits a register, a column or a clock.
"""

from typing import Annotated

from msgspec import Meta

MOST = 2**53
"""Largest whole number: all JSON readers and all database columns represent it exactly."""
MAX_MODELS = 500
"""Models of one node."""
MAX_TOKENS = 1_000_000_000
"""Tokens of one request or its response; a sum over thousands of millions of them fits 64 bits."""
MAX_MACS = 8
NAME_CHARS = 256
ORIGIN_CHARS = 200
PROOF_CHARS = 64
MAX_BODY_BYTES = 32 * 1024 * 1024
"""Size of the body of a request."""
MAX_EVENT_BYTES = 1024 * 1024
"""Size of one line of an event stream."""

Count = Annotated[int, Meta(ge=0, le=MOST)]
"""A number of bytes, tokens, requests or the like."""
Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
"""At most about thirty years."""
UnixSeconds = Annotated[float, Meta(ge=0.0, le=253_402_300_799.0)]
"""At most the year 9999, the last that a date can have."""
LEAST_RATE, MOST_RATE = 1e-3, 1e7
"""Bounds of a rate per second; a decode step takes the reciprocal."""
MAX_DEPTHS = 32
"""Depth classes, each twice as deep as the one before it."""
Rate = Annotated[float, Meta(ge=LEAST_RATE, le=MOST_RATE)]
StepSeconds = Annotated[float, Meta(ge=1.0 / MOST_RATE, le=1.0 / LEAST_RATE)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS)]
"""A model's name; `node.protocol.names` defines its characters."""
Id = Annotated[str, Meta(max_length=128)]
Origin = Annotated[str, Meta(max_length=ORIGIN_CHARS)]
Proof = Annotated[str, Meta(max_length=PROOF_CHARS)]
Word = Annotated[str, Meta(max_length=200)]
"""A short text such as a version, a chip or the name of a parser."""
Mac = Annotated[str, Meta(pattern="^[0-9a-f]{2}(:[0-9a-f]{2}){5}$", max_length=17)]
"""The address of a network interface."""
Sentence = Annotated[str, Meta(max_length=2000)]
"""A text for people."""


def clipped(sentence: str) -> str:
    """The sentence, cut to the length of a `Sentence`."""
    return sentence if len(sentence) <= 2000 else sentence[:1999] + "…"
