from math import inf

from node.engine.probe.runner import Divergence, ProbeOutput, divergence
from node.ipc.messages import Alternative, TokenLogprob


def token(text: str, logprob: float = -0.1, **others: float) -> TokenLogprob:
    top = {text: logprob, **others}
    alternatives = tuple(Alternative(each, each.encode(), value) for each, value in top.items())
    return TokenLogprob(alternatives[0], alternatives)


def test_equal_answers_diverge_nowhere_and_report_their_shift() -> None:
    left = ProbeOutput([token("a"), token("b", -0.2)])
    right = ProbeOutput([token("a"), token("b", -0.25)])
    found = divergence(left, right)
    assert found.at is None
    assert abs(found.shift - 0.05) < 1e-9


def test_answers_part_at_the_first_token_that_differs_by_how_much_likelier_one_was() -> None:
    left = ProbeOutput([token("a"), token("b", -0.70, c=-0.75)])
    right = ProbeOutput([token("a"), token("c", -0.70, b=-0.75), token("d")])
    found = divergence(left, right)
    assert found.at == 1
    assert abs(found.gap - 0.05) < 1e-9
    assert found.is_near_tie(0.1) and not found.is_near_tie(0.01)


def test_a_token_that_was_not_among_the_likeliest_is_no_near_tie() -> None:
    assert divergence(ProbeOutput([token("a")]), ProbeOutput([token("z")])).gap == inf


def test_an_answer_that_ends_early_parts_there() -> None:
    found = divergence(ProbeOutput([token("a")]), ProbeOutput([token("a"), token("b")]))
    assert (found.at, found.gap) == (1, inf)
    assert not Divergence(0, inf).is_near_tie(5.0)
