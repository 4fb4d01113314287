"""The rule for names, which appear in headers, logs, file names and terminals."""

from node.protocol.bounds import NAME_CHARS


def is_name(text: str) -> bool:
    """True if a model, a node, a key or an alias may have this name: at most `NAME_CHARS` printable
    characters (none that moves the cursor, hides text, or changes its direction), not empty, no
    blank at either end."""
    return 0 < len(text) <= NAME_CHARS and text.isprintable() and text == text.strip()
