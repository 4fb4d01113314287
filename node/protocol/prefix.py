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

import msgspec

from node.protocol.bodies import DIALECTS, Answer, Canonical, Dialect, Unit, answer_items
from node.protocol.canonical import Called, Fields, Said, seed
from node.protocol.chain_memo import ChainMemo, Key, Made, Preamble

__all__ = ["Answer", "Called", "Chain", "Chainer", "Fields", "Said", "answered", "read_fields"]

PIECE_BYTES = 1024
"""Canonical bytes between two cuts inside a long item."""
SHORT_BYTES = 4096
"""A body of less takes longer to look up than to read."""
KEY_BYTES = 256
"""Of a body's items, by which a `Chainer` looks for those that it has seen."""
MEMO_BYTES = 64 << 20
"""Of all bodies that a `Chainer` remembers."""

_HASH_BYTES = 8
_NO_TEXT = memoryview(b"")
_BETWEEN = b" \t\r\n,"
"""What is between two items of a list."""

_read_fields = msgspec.json.Decoder(Fields).decode
_read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


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

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def head(self) -> int:
        """The last hash, from which a longer chain goes on; 0 for an empty chain."""
        return self.hashes[-1] if self.hashes else 0


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
        self, fields: Fields, path: str, model: str, *, salt: str = "", head: int = 0
    ) -> Chain | None:
        """The chain of a body for the endpoint at `path`; None where the body is none that the
        endpoint takes, or the endpoint prefills nothing. `head`: the chain goes on from there,
        which then is its first position, as if the body had held all that is before."""
        dialect = DIALECTS.get(path)
        if dialect is None:
            return None
        try:
            return self._chain(fields, dialect, seed(fields, model, salt), head)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def _chain(self, fields: Fields, dialect: Dialect, begin: bytes, head: int) -> Chain:
        units = [] if head else dialect.preamble(fields)
        raw = dialect.items(fields)
        text = b"" if raw is None else bytes(raw)
        parts = [bytes(unit.raw) for unit in units]
        if not dialect.has_list or not text.startswith(b"["):
            preamble = _preamble(begin, head, units)
            made = _nothing(preamble)
            if raw is not None:
                _add(made, dialect.item(raw), begin)
        elif len(text) + sum(map(len, parts)) < SHORT_BYTES:
            preamble = _preamble(begin, head, units)
            made = _extended(_nothing(preamble), text, begin, dialect.item)
        else:
            # Those that begin alike are compared one by one.
            key = (begin, head, dialect.item, text[:KEY_BYTES], *parts)
            preamble = self._memo.preamble(key) or _preamble(begin, head, units)
            made = self._made(key, preamble, text)
        return Chain(made.hashes[:], made.sizes[:], made.items[:], len(preamble[0]))

    def _made(self, key: Key, preamble: Preamble, text: bytes) -> Made:
        begin, _, item, *_ = key
        known = self._memo.longest(key, text)
        made = _extended(known or _nothing(preamble), text, begin, item)
        if made.ends and made is not known:
            is_longer = known is not None and text.startswith(known.text)
            self._memo.put(key, preamble, made, known if is_longer else None)
        return made


def answered(chain: Chain, answer: Answer) -> Chain:
    """The chain of the request with its answer behind it, as the client gives it back. A
    completion's is no longer: the next prompt is a longer text."""
    made = Made(_NO_TEXT, [], chain.hashes[:], chain.sizes[:], chain.items[:])
    for form in answer_items(answer):
        _add(made, form, b"")
    return Chain(made.hashes, made.sizes, made.items, chain.preamble)


def _preamble(begin: bytes, head: int, units: list[Unit]) -> Preamble:
    if head:
        return array("Q", [head]), array("I", [0])
    made = Made(_NO_TEXT, [], array("Q"), array("I"), array("I"))
    for unit in units:
        _add(made, unit.canonical(unit.raw), begin)
    return made.hashes, made.sizes


def _nothing(preamble: Preamble) -> Made:
    hashes, sizes = preamble
    return Made(memoryview(b"["), [], hashes[:], sizes[:], array("I"))


def _extended(known: Made, text: bytes, begin: bytes, item: Canonical) -> Made:
    """The chain of the whole list, of which `known` are the first items."""
    at = len(known.text)
    rest = text
    if known.ends:
        rest = b"[" + text[at:].lstrip(_BETWEEN)
        if rest == b"[]":
            return known
    ends = list(known.ends)
    made = Made(known.text, ends, known.hashes[:], known.sizes[:], known.items[:])
    for raw in _read_list(rest):
        while text[at] in _BETWEEN:
            at += 1
        at += len(memoryview(raw))
        ends.append(at)
        _add(made, item(raw), begin)
    return made._replace(text=memoryview(text)[:at])


def _add(made: Made, form: bytes, begin: bytes) -> None:
    """Puts an item's positions behind those that are there."""
    hashes, sizes, items = made.hashes, made.sizes, made.items
    before = hashes[-1].to_bytes(_HASH_BYTES, "little") if hashes else _digest(begin)
    digests = []
    for at in range(0, len(form), PIECE_BYTES):
        piece = form[at : at + PIECE_BYTES]
        before = blake2b(before + piece, digest_size=_HASH_BYTES).digest()
        digests.append(before)
    added = array("Q", b"".join(digests))
    if sys.byteorder == "big":
        added.byteswap()
    hashes.extend(added)
    if form:
        length = sizes[-1] if sizes else 0
        sizes.extend(range(length + PIECE_BYTES, length + len(form), PIECE_BYTES))
        sizes.append(length + len(form))
    items.append(len(hashes))


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_HASH_BYTES).digest()
