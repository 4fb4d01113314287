"""The prefix chain of a request: what it begins with, as a list of 64-bit hashes.

Router and agent make the same chain of the same body, so that a router without a tokeniser can tell
which node holds how much of a prompt. The request is brought to one form, in the order in which a
prompt shows it (tools, system, messages), cut at the end of each item and every `PIECE_BYTES`
inside long ones, and each cut's hash names everything up to there.
"""

import sys
from array import array
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from node.protocol.bodies import DIALECTS, Answer, answer_items
from node.protocol.canonical import Called, Fields, Said, seed
from node.protocol.chain_memo import ChainMemo, Made, Preamble, item_ends
from node.protocol.dialect import Dialect, Forms, Unit

__all__ = [
    "Answer",
    "Called",
    "Chain",
    "Chainer",
    "Fields",
    "Head",
    "Said",
    "answered",
    "read_fields",
]

PIECE_BYTES = 1024
"""Canonical bytes between two cuts inside a long item."""
SHORT_BYTES = 4096
"""What is shorter takes longer to look up than to read."""
KEY_BYTES = 256
"""Of a body's items, by which a `Chainer` looks for those that it has seen."""
MEMO_BYTES = 64 << 20
"""Of all bodies that a `Chainer` remembers."""

_HASH_BYTES = 8
_SPACE = b" \t\r\n"
_BETWEEN = _SPACE + b","
"""What is between two items of a list."""

_read_fields = msgspec.json.Decoder(Fields).decode


class Head(NamedTuple):
    """Where a chain ends, for others to go on from."""

    hash: int
    """The last one."""
    front: int
    """Names all that stands before the items, and the model, salt and options."""
    size_bytes: int
    """Canonical ones up to there."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The positions of one request, ascending; two chains share a prefix as far as their hashes are
    the same."""

    hashes: "array[int]"
    """One of 64 bits for each position (typecode `Q`)."""
    sizes: "array[int]"
    """Canonical bytes up to each position (typecode `I`)."""
    items: "array[int]"
    """For each item of the body's own list (messages, input items, or the one prompt), how many
    positions there are up to its end (typecode `I`)."""
    preamble: int
    """How many positions belong to what stands before the first item: tools, and a system prompt
    that is a field of its own; or one, for all that a chain goes on from."""
    front: int = 0
    """As in `Head`."""

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def items_bytes(self) -> int:
        """Canonical bytes of the items: no more than what a prompt says of them."""
        if not self.sizes:
            return 0
        return self.sizes[-1] - (self.sizes[self.preamble - 1] if self.preamble else 0)

    @property
    def head(self) -> int:
        """The last hash, from which a longer chain goes on; 0 for an empty chain."""
        return self.hashes[-1] if self.hashes else 0

    @property
    def end(self) -> Head | None:
        """What a longer chain needs to go on from here; None for an empty chain."""
        return Head(self.hashes[-1], self.front, self.sizes[-1]) if self.hashes else None


def read_fields(body: bytes) -> Fields:
    """The fields of a body, which they are parts of. Raises `msgspec.DecodeError` for what is no
    JSON object."""
    try:
        return _read_fields(body)
    except UnicodeDecodeError as exc:
        raise msgspec.DecodeError(str(exc)) from exc


class Chainer:
    """Makes chains, and keeps what it made of bodies that it has seen. Safe to use from several
    threads."""

    def __init__(self, memo_bytes: int = MEMO_BYTES) -> None:
        self._memo = ChainMemo(memo_bytes)

    def chain(
        self, fields: Fields, path: str, model: str, *, salt: str = "", head: Head | None = None
    ) -> Chain | None:
        """The chain of a body for the endpoint at `path`; None where the body is none that the
        endpoint takes, or the endpoint prefills nothing. `head`: the chain goes on from there,
        which then is its first position, as if the body had held all items that are before; None
        where its prompt begins in another way than the one that ended there."""
        dialect = DIALECTS.get(path)
        if dialect is None:
            return None
        try:
            return self._chain(fields, dialect, seed(fields, model, salt), head)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            return None

    def _chain(
        self, fields: Fields, dialect: Dialect, begin: bytes, head: Head | None
    ) -> Chain | None:
        preamble = self._preamble(dialect, fields, begin)
        front = _front(begin, preamble)
        if head is not None and head.front != front:
            return None
        raw, nothing = dialect.items(fields), _nothing(preamble, head)
        text = b"[]" if raw is None else bytes(raw)
        if not dialect.has_list or not text.startswith(b"["):
            made = _extended(nothing, b"[" + text + b"]", begin, dialect.forms)
        elif len(text) < SHORT_BYTES:
            made = _extended(nothing, text, begin, dialect.forms)
        else:
            made = self._made(nothing, text, begin, dialect.forms, (front, head))
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
        self, nothing: Made, text: bytes, begin: bytes, forms: Forms, before: tuple[Any, ...]
    ) -> Made:
        """As `_extended`; `before` names what stands before the items, of one `begin`."""
        # Those that begin alike are compared one by one.
        key = (begin, forms, *before, text[:KEY_BYTES])
        known = self._memo.longest(key, text)
        made = _extended(known or nothing, text, begin, forms)
        if made.items and made is not known:
            self._memo.put(key, made)
        return made


def answered(chain: Chain, answer: Answer) -> Chain:
    """The chain of the request with its answer behind it, as the client gives it back. A
    completion's is no longer: the next prompt is a longer text."""
    made = Made(b"", chain.hashes[:], chain.sizes[:], chain.items[:])
    for form in answer_items(answer):
        _add(made, form, b"")
    return Chain(made.hashes, made.sizes, made.items, chain.preamble, chain.front)


def _preamble(begin: bytes, units: list[Unit]) -> Preamble:
    made = Made(b"", array("Q"), array("I"), array("I"))
    for unit in units:
        _add(made, unit.canonical(unit.raw), begin)
    return made.hashes, made.sizes


def _front(begin: bytes, preamble: Preamble) -> int:
    hashes, _ = preamble
    return hashes[-1] if hashes else int.from_bytes(_digest(begin), "little")


def _nothing(preamble: Preamble, head: Head | None) -> Made:
    hashes, sizes = preamble
    if head is not None:
        hashes, sizes = array("Q", [head.hash]), array("I", [head.size_bytes])
    return Made(b"[", hashes[:], sizes[:], array("I"))


def _extended(known: Made, text: bytes, begin: bytes, forms: Forms) -> Made:
    """The chain of the whole list, of which `known` are the first items."""
    at, rest, ends = len(known.text), text, known.ends
    if known.items:
        rest = b"[" + text[at:].lstrip(_BETWEEN)
        if rest == b"[]":
            return known
        if ends is not None:
            ends = ends + item_ends(text, at)
    read = text[:-1].rstrip(_SPACE)
    made = Made(read, known.hashes[:], known.sizes[:], known.items[:], ends)
    for form in forms(rest, len(known.items)):
        _add(made, form, begin)
    return made


def _add(made: Made, form: bytes, begin: bytes) -> None:
    """Puts an item's positions behind those that are there."""
    hashes, sizes, length = made.hashes, made.sizes, len(form)
    if length:
        before = hashes[-1].to_bytes(_HASH_BYTES, "little") if hashes else _digest(begin)
        digests = []
        for at in range(0, length, PIECE_BYTES):
            piece = form[at : at + PIECE_BYTES]
            # As salt, what is before makes no block of its own.
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
