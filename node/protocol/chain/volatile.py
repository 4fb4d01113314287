"""Removes lines of a system prompt that change with every request and mean nothing to a model.

Some clients put them in front of a system prompt, where they would keep prompts from sharing a
prefix.
"""

_PREFIXES = ("x-anthropic-billing-header:",)


def without_volatile_lines(text: str) -> str:
    """The text, which must be a system prompt's, without such lines."""
    lowered = text.lower()
    if not any(prefix in lowered for prefix in _PREFIXES):
        return text
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if not line.lstrip().lower().startswith(_PREFIXES)]
    return "".join(kept)
