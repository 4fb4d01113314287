"""Bounds the number of values in a JSON body before it is decoded.

A value of two bytes occupies hundreds of bytes once decoded, and as many again in an error: a body
of 30 MB could need 10 GB. Text within strings does not count.
"""

MAX_CONTAINERS = 100_000
"""Objects and lists; a message, part, tool or schema has only a few."""
MAX_VALUES = 500_000
"""All values, token ids among them."""
_OTHERS = bytes(set(range(256)) - set(b'",[{'))


TOO_MANY = (
    f"The body has more than {MAX_CONTAINERS:,} objects and lists, or {MAX_VALUES:,} values in all."
)


def has_too_many_values(body: bytes) -> bool:
    """True if the body has more objects and lists, or more values, than any request needs."""
    if len(body) <= MAX_CONTAINERS or not _exceeds(body):
        return False
    # An escaped quote ends no string. Pairs of backslashes are removed first, from the left.
    kept = body.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _OTHERS)
    # Each value but the first follows a comma, and has at most one key.
    if kept.count(b'"') > 4 * (MAX_VALUES + 1):
        return True
    return _exceeds(b"".join(kept.split(b'"')[::2]))


def _exceeds(text: bytes) -> bool:
    containers = text.count(b"[") + text.count(b"{")
    return containers > MAX_CONTAINERS or text.count(b",") > MAX_VALUES
