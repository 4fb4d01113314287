"""Signatures of thinking blocks.

Clients send them back with the blocks; they verify nothing. If the client chose not to get the
thinking, the signature carries its text, so that the model has it in the next turn; any other
signature is a hash of the text.
"""

import base64
import hashlib

_CARRIED = "text."
_HASHED = "hash."


def hashed_signature(thought: str) -> str:
    """Returns the signature for thinking that the client gets as text."""
    digest = hashlib.blake2b(thought.encode(), digest_size=16).digest()
    return _HASHED + base64.urlsafe_b64encode(digest).decode()


def carrying_signature(thought: str) -> str:
    """Returns a signature that carries the thinking itself; about 4/3 of its length."""
    return _CARRIED + base64.urlsafe_b64encode(thought.encode()).decode()


def carried_thought(signature: str) -> str:
    """Returns the thinking that a signature carries; empty for one that carries none, such as
    another server's. Raises `ValueError` for a damaged one."""
    if not signature.startswith(_CARRIED):
        return ""
    encoded = signature.removeprefix(_CARRIED).encode()
    return base64.b64decode(encoded, altchars=b"-_", validate=True).decode()
