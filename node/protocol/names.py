"""What may be a name: it goes into headers, logs, file names and lines of a terminal."""

from node.protocol.bounds import NAME_CHARS


def is_name(text: str) -> bool:
    """Whether a model, a node, a key or an alias can be called so: printable characters (none that
    moves the cursor, hides, or turns the direction of text), not empty, at most `NAME_CHARS` of
    them, no blank at an end."""
    return 0 < len(text) <= NAME_CHARS and text.isprintable() and text == text.strip()
