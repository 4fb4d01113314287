"""The prefix hash chain of a request: 64-bit hashes that name its prefixes.

Router and agent make the same chain of the same body, so that a router without a tokenizer can find
out how much of a prompt a node has cached. The request is brought to one canonical form, in the
order in which a prompt shows it (tools, system, messages), cut at the end of each item and every
`PIECE_BYTES` inside long ones, and each cut's hash covers everything up to there.
"""

import sys
from array import array
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from node.protocol.chain.bodies import DIALECTS, ResponseOutput, output_items
from node.protocol.chain.canonical import Fields, OutputCall, OutputText, seed
from node.protocol.chain.chain_memo import ChainMemo, ItemChain, Preamble, item_ends
from node.protocol.chain.dialect import Dialect, Forms, Unit

__all__ = [
    "Chain",
    "PrefixHasher",
    "Fields",
    "Head",
    "OutputCall",
    "OutputText",
    "ResponseOutput",
    "chain_with_output",
    "read_fields",
]

PIECE_BYTES = 1024
"""Canonical bytes between two cuts inside a long item."""
SHORT_BYTES = 4096
"""Looking up a shorter text takes longer than reading it."""
KEY_BYTES = 256
"""First bytes of a list of items by which a `PrefixHasher` finds lists that it has seen."""
MEMO_BYTES = 64 << 20
"""Most bytes that a `PrefixHasher` keeps for all bodies."""

_HASH_BYTES = 8
_SPACE = b" \t\r\n"
_BETWEEN = _SPACE + b","
"""Bytes between two items of a list."""

_read_fields = msgspec.json.Decoder(Fields).decode


class Head(NamedTuple):
    """The end of a chain, from which others continue."""

    hash: int
    """The last hash."""
    front: int
    """A hash of everything before the items, with the model, salt and options."""
    size_bytes: int
    """Canonical bytes up to there."""


class Chain(msgspec.Struct, frozen=True):
    """The positions of one request, ascending. Two chains share a prefix as far as their hashes are
    the same."""

    hashes: "array[int]"
    """64-bit hash of each position (typecode `Q`)."""
    sizes: "array[int]"
    """Canonical bytes up to each position (typecode `I`)."""
    items: "array[int]"
    """For each item of the body's own list (messages, input items, or the one prompt), the number
    of positions up to its end (typecode `I`)."""
    preamble: int
    """Number of positions before the first item: tools, and a system prompt that is a field of its
    own. It is 1 for a chain that continues another, which is that position."""
    front: int = 0
    """The same as `Head.front`."""

    def __len__(self) -> int:
        return len(self.hashes)

    def __bool__(self) -> bool:
        return bool(self.hashes)

    @property
    def items_bytes(self) -> int:
        """Canonical bytes of the items. A prompt has at least as many bytes for them."""
        if not self.sizes:
            return 0
        return self.sizes[-1] - (self.sizes[self.preamble - 1] if self.preamble else 0)

    @property
    def head(self) -> int:
        """The last hash, from which a longer chain continues; 0 for an empty chain."""
        return self.hashes[-1] if self.hashes else 0

    @property
    def end(self) -> Head | None:
        """The `Head` from which a longer chain continues; None for an empty chain."""
        return Head(self.hashes[-1], self.front, self.sizes[-1]) if self.hashes else None


def read_fields(body: bytes) -> Fields:
    """The body's top-level fields, which refer to its bytes. Raises `msgspec.DecodeError` if it is
    no JSON object."""
    try:
        return _read_fields(body)
    except UnicodeDecodeError as exc:
        raise msgspec.DecodeError(str(exc)) from exc


class PrefixHasher:
    """Makes chains, and caches those of bodies that it has seen. Thread-safe."""

    def __init__(self, memo_bytes: int = MEMO_BYTES) -> None:
        self._memo = ChainMemo(memo_bytes)

    def chain(
        self, fields: Fields, path: str, model: str, *, salt: str = "", head: Head | None = None
    ) -> Chain | None:
        """The chain of a body for the endpoint at `path`; None if the body is not valid there, or
        the endpoint prefills nothing.

        With `head` the chain continues from there: the head is its first position, as if the body
        had all items before it. None if the prompt begins differently from the one that ended at
        the head.
        """
        dialect = DIALECTS.get(path)
        if dialect is None:
            return None
        options = dialect.options
        try:
            begin = seed(fields if options is None else options(fields), model, salt)
            return self._chain(fields, dialect, begin, head)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            return None

    def _chain(
        self, fields: Fields, dialect: Dialect, begin: bytes, head: Head | None
    ) -> Chain | None:
        preamble = self._preamble(dialect, fields, begin)
        front = _front(begin, preamble)
        if head is not None and head.front != front:
            return None
        raw, empty = dialect.items(fields), _empty(preamble, head)
        text = b"[]" if raw is None else bytes(raw)
        if not dialect.has_list or not text.startswith(b"["):
            made = _extended(empty, b"[" + text + b"]", begin, dialect.forms)
        elif len(text) < SHORT_BYTES:
            made = _extended(empty, text, begin, dialect.forms)
        else:
            made = self._made(empty, text, begin, dialect.forms, (front, head))
        before = len(preamble[0]) if head is None else 1
        return Chain(made.hashes[:], made.sizes[:], made.items[:], before, front)

    def _preamble(self, dialect: Dialect, fields: Fields, begin: bytes) -> Preamble:
        units = dialect.preamble(fields)
        parts = [bytes(unit.raw) for unit in units]
        if sum(map(len, parts)) < SHORT_BYTES:
            return _preamble(begin, units)
        key = (begin, dialect.forms, *parts)
        known = self._memo.preamble(key)
        if known is None:
            known = _preamble(begin, units)
            self._memo.put_preamble(key, known)
        return known

    def _made(
        self, empty: ItemChain, text: bytes, begin: bytes, forms: Forms, before: tuple[Any, ...]
    ) -> ItemChain:
        """The same as `_extended`, from the cache as far as possible; `before` identifies
        everything before the items."""
        key = (begin, forms, *before, text[:KEY_BYTES])
        known = self._memo.longest(key, text)
        made = _extended(known or empty, text, begin, forms)
        if made.hashes and made.items and made is not known:
            self._memo.put(key, made)
        return made


def chain_with_output(chain: Chain, output: ResponseOutput) -> Chain:
    """The chain of the request followed by its response as the client will repeat it. A
    completion's chain stays as it is: the next prompt is a longer text."""
    made = ItemChain(b"", chain.hashes[:], chain.sizes[:], chain.items[:])
    for form in output_items(output):
        _add(made, form, b"")
    return Chain(made.hashes, made.sizes, made.items, chain.preamble, chain.front)


def _preamble(begin: bytes, units: list[Unit]) -> Preamble:
    made = ItemChain(b"", array("Q"), array("I"), array("I"))
    for unit in units:
        _add(made, unit.canonical(unit.raw), begin)
    return made.hashes, made.sizes


def _front(begin: bytes, preamble: Preamble) -> int:
    hashes, _ = preamble
    return hashes[-1] if hashes else int.from_bytes(_digest(begin), "little")


def _empty(preamble: Preamble, head: Head | None) -> ItemChain:
    hashes, sizes = preamble
    if head is not None:
        hashes, sizes = array("Q", [head.hash]), array("I", [head.size_bytes])
    return ItemChain(b"[", hashes[:], sizes[:], array("I"))


def _extended(known: ItemChain, text: bytes, begin: bytes, forms: Forms) -> ItemChain:
    """The chain of the whole list, of which `known` are the first items."""
    at, rest, ends = len(known.text), text, known.ends
    if known.items:
        rest = b"[" + text[at:].lstrip(_BETWEEN)
        if rest == b"[]":
            return known
        if ends is not None:
            ends = ends + item_ends(text, at)
    read = text[:-1].rstrip(_SPACE)
    made = ItemChain(read, known.hashes[:], known.sizes[:], known.items[:], ends)
    for form in forms(rest, len(known.items)):
        _add(made, form, begin)
    return made


def _add(made: ItemChain, form: bytes, begin: bytes) -> None:
    """Appends the positions of an item."""
    hashes, sizes, length = made.hashes, made.sizes, len(form)
    if length:
        before = hashes[-1].to_bytes(_HASH_BYTES, "little") if hashes else _digest(begin)
        digests = []
        for at in range(0, length, PIECE_BYTES):
            piece = form[at : at + PIECE_BYTES]
            # The previous hash is the salt, so that it does not cost a block of its own.
            before = blake2b(piece, digest_size=_HASH_BYTES, salt=before).digest()
            digests.append(before)
        hashes.extend(_numbers(b"".join(digests)))
        done = sizes[-1] if sizes else 0
        if length > PIECE_BYTES:
            sizes.extend(range(done + PIECE_BYTES, done + length, PIECE_BYTES))
        sizes.append(done + length)
    made.items.append(len(hashes))


def _numbers(digests: bytes) -> "array[int]":
    numbers = array("Q", digests)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_HASH_BYTES).digest()
