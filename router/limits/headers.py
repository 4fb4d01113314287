"""Response headers that show what is left of a caller's limits, as each dialect's clients read
them."""

from datetime import UTC, datetime
from math import ceil

from node.protocol.paths import ApiDialect
from router.limits.account import Now, Remaining

Headers = tuple[tuple[bytes, bytes], ...]


_OPENAI = b"x-ratelimit-limit-%b", b"x-ratelimit-remaining-%b", b"x-ratelimit-reset-%b"
_ANTHROPIC = (
    b"anthropic-ratelimit-%b-limit",
    b"anthropic-ratelimit-%b-remaining",
    b"anthropic-ratelimit-%b-reset",
)
_REQUESTS, _TOKENS = (
    tuple(tuple(form % what for form in forms) for forms in (_OPENAI, _ANTHROPIC))
    for what in (b"requests", b"tokens")
)
"""Names of the headers for the limit, what is left, and the reset: OpenAI's, then Anthropic's."""


def limit_headers(
    dialect: ApiDialect, requests: Remaining | None, tokens: Remaining | None, now: Now
) -> Headers:
    """Headers for the limits that are set."""
    headers: Headers = ()
    is_anthropic = dialect is ApiDialect.ANTHROPIC
    for state, names in ((requests, _REQUESTS[is_anthropic]), (tokens, _TOKENS[is_anthropic])):
        if state is not None:
            reset_s = state.reset_s
            reset = _date(now.unix_s + reset_s) if is_anthropic else _duration(reset_s)
            limit, remaining, resets = names
            headers += (
                (limit, b"%d" % state.most),
                (remaining, b"%d" % state.left),
                (resets, reset),
            )
    return headers


def _duration(seconds: float) -> bytes:
    """A duration in OpenAI's form, such as 6m0s or 120ms."""
    if seconds < 1.0:
        return b"%dms" % ceil(seconds * 1e3)
    if (whole_s := ceil(seconds)) < 60:
        return b"%ds" % whole_s
    minutes, left = divmod(whole_s, 60)
    hours, minutes = divmod(minutes, 60)
    parts = b"%dh" % hours if hours else b""
    parts += b"%dm" % minutes if hours or minutes else b""
    return parts + b"%ds" % left


def _date(unix_s: float) -> bytes:
    """A time in RFC 3339, rounded up to the second."""
    at = datetime.fromtimestamp(ceil(unix_s), UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ").encode()
