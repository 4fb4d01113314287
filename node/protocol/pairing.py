"""Pairing of a router with a node agent by a code that a person carries from one to the other.

A code has 16 characters. The first half is 40 bits of the SHA-256 of the agent's certificate, the
second half is a secret of 40 random bits. The router compares the certificate that it finds at the
agent's address with the first half, and pins it. Then both prove to each other that they know the
secret, in a form that contains the whole certificate: what one of them says is of no use to a man
in the middle, whose certificate is another one, even if its first 40 bits are the same. The secret
itself is never sent, and guessing it from a proof takes longer than the code is valid.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from node.protocol.bounds import Id, Name, UnixSeconds

PATH_PAIR = "/fleet/pair"
"""`POST` with a `PairRequest`, over TLS and without a token; the response is a `PairReply`."""
PATH_ROTATE = "/fleet/pair/rotate"
"""`POST` by a paired router: a new secret, with a `NewSecret` as the response. The old one is void
once the new one has been used."""
PATH_LEAVE = "/fleet/pair/leave"
"""`POST` by a paired router: the agent forgets it."""
PATH_PAIRINGS = "/fleet/pairings"
"""`GET` by a command on the agent's machine: a `PairingList`."""
PATH_NEW_CODE = "/fleet/pairings/code"
"""`POST` by a command on the agent's machine: a `NewCode`, which makes the last one void."""
PATH_UNPAIR = "/fleet/pairings/remove"
"""`POST` with a `Unpair` by a command on the agent's machine; the response is a `PairingList`."""

CODE_S = 600.0
"""Seconds for which a code is valid."""
TRIES = 5
"""Wrong tries after which a code is void."""

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Without letters that are read or heard as another character."""
_READ_AS = str.maketrans({"O": "0", "I": "1", "L": "1", "-": "", " ": ""})
_HALF_BYTES = 5
_CHARS = 16
_GROUP_CHARS = 4
_SALT_BYTES = 16
_SECRET_BYTES = 32
_COST = 2**15
"""The cost of scrypt: 32 MiB and about a tenth of a second for each guess."""
_MOST_MEMORY_BYTES = 64 * 1024 * 1024

Hex = Annotated[str, Meta(max_length=64, pattern="^[0-9a-f]*$")]
Secret = Annotated[str, Meta(min_length=32, max_length=128, pattern="^[A-Za-z0-9_-]*$")]


class NotACode(ValueError):
    """The text is no code."""


@dataclass(frozen=True, slots=True)
class Code:
    """A one-time code."""

    certificate: bytes = field(repr=False)
    """First bytes of the SHA-256 of the agent's certificate."""
    secret: bytes = field(repr=False)

    @classmethod
    def new(cls, fingerprint: bytes) -> Code:
        """A new code for the certificate with this SHA-256."""
        return cls(fingerprint[:_HALF_BYTES], secrets.token_bytes(_HALF_BYTES))

    @classmethod
    def read(cls, text: str) -> Code:
        """Reads a code as a person has typed it. Raises `NotACode`."""
        chars = text.upper().translate(_READ_AS)
        if len(chars) != _CHARS or any(char not in _ALPHABET for char in chars):
            raise NotACode(
                f"The code is not one: it has {_CHARS} letters and digits, as in "
                "K3QW-M2XP-9RTE-7HBC."
            )
        number = 0
        for char in chars:
            number = number << 5 | _ALPHABET.index(char)
        both = number.to_bytes(2 * _HALF_BYTES)
        return cls(both[:_HALF_BYTES], both[_HALF_BYTES:])

    def text(self) -> str:
        """The code for a person to read, in groups."""
        number = int.from_bytes(self.certificate + self.secret)
        chars = [_ALPHABET[number >> 5 * place & 31] for place in reversed(range(_CHARS))]
        groups = range(0, _CHARS, _GROUP_CHARS)
        return "-".join("".join(chars[at : at + _GROUP_CHARS]) for at in groups)

    def fits(self, fingerprint: bytes) -> bool:
        """True if the code is for the certificate with this SHA-256."""
        return hmac.compare_digest(fingerprint[:_HALF_BYTES], self.certificate)


class PairRequest(msgspec.Struct, frozen=True):
    """Body of `PATH_PAIR`."""

    router_id: Id
    router_name: Name
    """The name of the router's machine, for people."""
    salt: Hex
    """Random, of this request."""
    proof: Hex


class PairReply(msgspec.Struct, frozen=True):
    """Response of `PATH_PAIR`."""

    node_id: Id
    secret: Secret
    """The router's own token from now on."""
    proof: Hex

    def __repr__(self) -> str:
        return f"PairReply(node_id={self.node_id!r})"


class NewSecret(msgspec.Struct, frozen=True):
    """Response of `PATH_ROTATE`."""

    secret: Secret

    def __repr__(self) -> str:
        return "NewSecret(…)"


class PairedRouter(msgspec.Struct, frozen=True):
    """A router that is paired with the agent, without its secret."""

    router_id: Id
    name: Name
    paired_unix_s: UnixSeconds


class PairingList(msgspec.Struct, frozen=True):
    """Response of `PATH_PAIRINGS`."""

    routers: Annotated[tuple[PairedRouter, ...], Meta(max_length=1000)]


class NewCode(msgspec.Struct, frozen=True):
    """Response of `PATH_NEW_CODE`."""

    code: Annotated[str, Meta(max_length=64)]
    valid_s: float
    host: Name
    """The address to which the agent is bound."""

    def __repr__(self) -> str:
        return f"NewCode(valid_s={self.valid_s})"


class Unpair(msgspec.Struct, frozen=True):
    """Body of `PATH_UNPAIR`."""

    router: Name | None = None
    """The name or the id of a router; None for all of them."""


class Proofs:
    """The proofs of both sides for one code, one certificate and one salt. Making them takes a
    tenth of a second."""

    def __init__(self, code: Code, fingerprint: bytes, salt: str) -> None:
        self._key = hashlib.scrypt(
            code.secret,
            salt=bytes.fromhex(salt) + fingerprint,
            n=_COST,
            r=8,
            p=1,
            maxmem=_MOST_MEMORY_BYTES,
            dklen=32,
        )

    def of_router(self, router_id: str, router_name: str) -> str:
        return self._over("router", router_id, router_name)

    def of_agent(self, node_id: str, secret: str) -> str:
        return self._over("agent", node_id, secret)

    def _over(self, *parts: str) -> str:
        text = msgspec.json.encode(parts)
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()


def new_salt() -> str:
    return secrets.token_hex(_SALT_BYTES)


def is_salt(text: str) -> bool:
    return len(text) == 2 * _SALT_BYTES


def new_secret() -> str:
    return secrets.token_urlsafe(_SECRET_BYTES)


def secret_hash(secret: str) -> str:
    """The hash of a router's secret, which an agent keeps; the secret is too random to be guessed
    from it."""
    return hashlib.sha256(secret.encode()).hexdigest()
