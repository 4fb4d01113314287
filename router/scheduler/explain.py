"""Sentences that explain decisions and rejections to people."""

from collections.abc import Mapping, Sequence

from router.types import NodeTerms

_WORDS = {
    "queue_s": "the prefill ahead of it",
    "prefill_s": "its uncached tokens",
    "restore_s": "reading its prefix from disk",
    "load_s": "the model's load",
    "wake_s": "waking the node",
    "eviction_s": "what it would evict from the cache",
    "decode_interference_s": "the streams that decode there",
    "contention_s": "the other sessions there",
    "externality_s": "the turns of others that would wait for it",
    "failure_penalty_s": "recent failures and rejections of that node",
    "migration_s": "moving its session to another node",
}


def reason(chosen: NodeTerms, others: Sequence[NodeTerms], *, tied: bool) -> str:
    """The reason for the chosen node, compared with the others that could have served the
    request."""
    if not others:
        return f"{chosen.name} is the only node that can serve it."
    next_best = min(others, key=lambda terms: terms.total_s)
    if tied:
        return (
            f"{chosen.name} costs as much as {next_best.name} ({chosen.total_s:.2f} s), and was "
            "used less lately."
        )
    most = max(_WORDS, key=lambda term: _difference(next_best, chosen, term))
    return (
        f"{chosen.name} costs {chosen.total_s:.2f} s; the next, {next_best.name}, "
        f"{next_best.total_s:.2f} s, most of the difference for {_WORDS[most]}."
    )


def no_node(model: str, why: Mapping[str, str]) -> str:
    """The message if no node that has the model can serve the request; `why` has a sentence about
    each."""
    sentences = " ".join(f"{name}: {sentence}" for name, sentence in why.items())
    return (
        f"No node that has the model {model!r} can serve it. {sentences} `router nodes` shows more."
    )


def unknown_model(model: str) -> str:
    return (
        f"No node of the fleet has the model {model!r} now; `router models` lists those there are."
    )


def failed(names: Sequence[str]) -> str:
    """The message if these nodes have failed the request and no other one is left."""
    if len(names) > 1:
        how = f"{' and '.join(names)} failed it, one after the other"
    else:
        how = f"{names[0]} failed it, and no other node can serve it"
    return (
        f"The request got no response: {how}. `router nodes` and the logs of the nodes "
        "show why; it can be sent again."
    )


def no_candidate(terms: Sequence[NodeTerms]) -> str:
    """The reason if no node can serve the request, node by node."""
    if not terms:
        return "The fleet has no node; `router add-node` adds one."
    why = " ".join(f"{each.name}: {each.excluded}" for each in terms)
    return f"No node can serve it. {why} `router nodes` shows more."


def queue_full(model: str, waiting: int) -> str:
    return f"Too many requests for the model {model!r} are waiting ({waiting}); try again later."


def too_late(wait_s: float) -> str:
    return f"The request would have to wait about {wait_s:.0f} s, past its deadline."


DEADLINE_PASSED = "The request's deadline passed while it waited for a node."


def _difference(worse: NodeTerms, better: NodeTerms, term: str) -> float:
    more: float = getattr(worse, term) - getattr(better, term)
    return more
