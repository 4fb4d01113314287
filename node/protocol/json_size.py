"""How many values a body in JSON has, before anything is made of them.

A value of two bytes takes hundreds once it is decoded, and as many again where it is at fault: a
body of 30 MB would take 10 GB. Text within strings counts nothing.
"""

MAX_CONTAINERS = 100_000
"""Objects and lists: of each message, part, tool and schema a few."""
MAX_VALUES = 500_000
"""All of them, the ids of tokens among them."""
_OTHERS = bytes(set(range(256)) - set(b'",[{'))


TOO_MANY = (
    f"The body has more than {MAX_CONTAINERS:,} objects and lists, or {MAX_VALUES:,} values in all."
)


def has_too_many_values(body: bytes) -> bool:
    """Whether the body has more of either than any request needs."""
    if len(body) <= MAX_CONTAINERS or not _exceeds(body):
        return False
    # What is escaped ends no string; pairs of backslashes go first, from the left.
    kept = body.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _OTHERS)
    # Each value but the first is behind a comma, and has a key at most.
    if kept.count(b'"') > 4 * (MAX_VALUES + 1):
        return True
    return _exceeds(b"".join(kept.split(b'"')[::2]))


def _exceeds(text: bytes) -> bool:
    containers = text.count(b"[") + text.count(b"{")
    return containers > MAX_CONTAINERS or text.count(b",") > MAX_VALUES
