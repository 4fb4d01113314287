"""Hashes of call arguments, by which repeated calls are recognized."""

import hashlib
import json
from typing import TypeAlias

from node.parsing.json_text import read_json

ArgumentHashes: TypeAlias = dict[str, bytes]
"""Hash of each argument of a call by name; calls with equal arguments have equal hashes."""


def argument_hashes(arguments: str) -> ArgumentHashes:
    """Returns the hashes of all arguments, given the JSON text of the object."""
    return {name: _digest(value) for name, value in read_json(arguments).items()}


def value_hash(value: str) -> bytes:
    """Returns the hash of one argument, given its JSON text."""
    return _digest(read_json(value))


def _digest(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
