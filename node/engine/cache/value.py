"""What it is worth to keep something in the cache: pure arithmetic.

The formula is the one of the engine's issue: value = seconds of prefill that would have to be
spent again x recency / bytes.
"""

RECENCY_S = 60.0
"""An entry of this age is half as likely to be used again as a fresh one."""


def recency(age_s: float) -> float:
    """1 for an entry used now, falling as 1 / age: the longer an entry has not been used, the
    longer it will not be."""
    return 1.0 / (1.0 + max(age_s, 0.0) / RECENCY_S)


def value_per_byte(again_s: float, age_s: float, nbytes: int) -> float:
    """`again_s`: prefill seconds to have it again; `age_s`: since its last use. What takes no
    memory is measured as one byte."""
    return again_s * recency(age_s) / max(nbytes, 1)


def worth_reading(again_s: float, nbytes: int, read_bytes_per_s: float) -> bool:
    """Whether it comes back sooner from disk than by prefill."""
    return nbytes < again_s * read_bytes_per_s
