"""The signatures of thinking blocks.

A client gives them back with the blocks, and nothing is verified by them. One that stands for a
text that the client did not want to see carries that text, so that the model has it again in the
next turn; any other is a hash of the text.
"""

import base64
import hashlib

_CARRIED = "text."
_HASHED = "hash."


def hashed_signature(thought: str) -> str:
    """For a thought that the client sees."""
    digest = hashlib.blake2b(thought.encode(), digest_size=16).digest()
    return _HASHED + base64.urlsafe_b64encode(digest).decode()


def carrying_signature(thought: str) -> str:
    """For a thought that the client does not see; about 4/3 of its length."""
    return _CARRIED + base64.urlsafe_b64encode(thought.encode()).decode()


def carried_thought(signature: str) -> str:
    """The thought that a signature carries; empty for one that carries none, such as another
    server's. Raises `ValueError` for a damaged one."""
    if not signature.startswith(_CARRIED):
        return ""
    encoded = signature.removeprefix(_CARRIED).encode()
    return base64.b64decode(encoded, altchars=b"-_", validate=True).decode()
