"""Digests of call arguments, by which repeated calls are recognized."""

import hashlib
import json
from typing import TypeAlias

from node.parsing.json_text import read_json

Digests: TypeAlias = dict[str, bytes]
"""Digest of each argument of a call by name; calls with equal arguments have equal digests."""


def digests_of(arguments: str) -> Digests:
    """Returns the digests of all arguments, given the JSON text of the object."""
    return {name: _digest(value) for name, value in read_json(arguments).items()}


def digest_of(value: str) -> bytes:
    """Returns the digest of one argument, given its JSON text."""
    return _digest(read_json(value))


def _digest(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
