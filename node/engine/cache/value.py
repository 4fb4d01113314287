"""The value of keeping something in the cache: pure arithmetic.

value = seconds of prefill to compute it again x recency / bytes.
"""

RECENCY_S = 60.0
"""Age in seconds at which an entry is half as likely to be used again as a fresh one."""


def recency(age_s: float) -> float:
    """Returns 1 for an entry used now, falling as 1 / age: the longer an entry has not been used,
    the longer it is likely to stay unused."""
    return 1.0 / (1.0 + max(age_s, 0.0) / RECENCY_S)


def value_per_byte(recompute_s: float, age_s: float, nbytes: int) -> float:
    """Returns the value of an entry. `recompute_s` is the prefill time to compute it again, `age_s`
    the time since its last use. 0 bytes count as 1."""
    return recompute_s * recency(age_s) / max(nbytes, 1)


def worth_reading(recompute_s: float, nbytes: int, read_bytes_per_s: float) -> bool:
    """Returns True if a read from disk is faster than prefill."""
    return nbytes < recompute_s * read_bytes_per_s
