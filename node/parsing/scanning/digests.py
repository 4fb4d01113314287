"""Which calls say the same."""

import hashlib
import json
from typing import TypeAlias

from node.parsing.json_text import read_json

Digests: TypeAlias = dict[str, bytes]
"""Of the arguments of a call, by name: those of two calls are the same that say the same."""


def digests_of(arguments: str) -> Digests:
    """Of the JSON text of an object."""
    return {name: _digest(value) for name, value in read_json(arguments).items()}


def digest_of(value: str) -> bytes:
    """Of the JSON text of one argument."""
    return _digest(read_json(value))


def _digest(value: object) -> bytes:
    said = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return hashlib.blake2b(said.encode(errors="surrogatepass"), digest_size=16).digest()
