"""The ring of decisions, and the short form of one."""

import pytest
from msgspec.structs import fields, replace

from node.protocol.ids import client_id
from router.records.decisions import TERMS, Decisions, short
from router.types import Decision, NodeTerms, Reject, RejectKind, Verdict
from tests.router.conftest import FINISHED, lease, ticket

STUDIO = NodeTerms(
    "a",
    "studio",
    prefill_s=1.21,
    decode_interference_s=0.06,
    prompt_tokens=6100,
    cached_tokens=5800,
)
MINI = NodeTerms("b", "mini", queue_s=1.0, prefill_s=2.4, prompt_tokens=6100)
LOST = NodeTerms("c", "lost", excluded="It cannot be reached.")
NODE = "0123456789abcdef"


def decision(node_id: str = "a", ticket_id: str = "r", waited_s: float = 0.0) -> Decision:
    return Decision(ticket_id, "m", 10.0, node_id, (STUDIO, MINI, LOST), waited_s, "A reason.")


@pytest.fixture
def decisions() -> Decisions:
    return Decisions()


def test_the_outcome_of_a_decision_is_kept_with_it(decisions: Decisions) -> None:
    decisions.granted(ticket(), decision(waited_s=2.0))
    decisions.first_content("r", 3.4)
    decisions.ended("r", "served")
    decisions.on_verdict(Verdict(lease("r", "a"), 9.0, failed=False, usage=FINISHED))
    found = decisions.find("r")
    assert found is not None
    (attempt,) = found.attempts
    assert (attempt.ttft_s, attempt.outcome, attempt.usage) == (3.4, "served", FINISHED)
    assert attempt.expected_ttft_s == pytest.approx(3.21)


def test_what_did_not_stream_has_its_first_token_by_the_node_s_word(decisions: Decisions) -> None:
    decisions.granted(ticket(stream=False), decision(waited_s=2.0))
    decisions.on_verdict(Verdict(lease("r", "a"), 9.0, failed=False, usage=FINISHED))
    found = decisions.find("r")
    assert found is not None and found.attempts[0].ttft_s == 2.25


def test_a_retry_keeps_the_first_decision_and_its_outcome(decisions: Decisions) -> None:
    decisions.granted(ticket(), decision("a"))
    decisions.ended("r", "node_failed")
    decisions.granted(ticket(), decision("b"))
    decisions.first_content("r", 1.0)
    decisions.on_verdict(Verdict(lease("r", "b", attempt=2), 9.0, failed=False, usage=FINISHED))
    found = decisions.find("r")
    assert found is not None
    first, second = found.attempts
    assert (first.decision.node_id, first.outcome, first.usage) == ("a", "node_failed", None)
    assert (second.ttft_s, second.outcome, second.usage) == (1.0, "", FINISHED)


def test_a_rejection_stands_beside_the_attempts_before_it(decisions: Decisions) -> None:
    reject = Reject("r", RejectKind.NO_NODE, "None is left.", 5)
    decisions.granted(ticket(), decision())
    decisions.rejected(ticket(), reject)
    found = decisions.find("r")
    assert found is not None and len(found.attempts) == 1 and found.reject is reject


def test_a_request_that_falls_back_to_another_model_keeps_the_earlier_attempts(
    decisions: Decisions,
) -> None:
    first, second = ticket(model="m"), ticket(model="other")
    decisions.chosen(first, "m is the first that can serve it.")
    decisions.granted(first, decision())
    decisions.rejected(first, Reject("r", RejectKind.NO_NODE, "No.", 5))
    decisions.fell_back(second, "m", "node_failed")
    decisions.granted(second, replace(decision(), model="other"))
    decisions.on_verdict(Verdict(lease("r", "a"), 9.0, failed=True, usage=FINISHED))
    found = decisions.find("r")
    assert found is not None
    assert (found.model, found.reject, found.failed) == ("other", None, [("m", "node_failed")])
    assert found.why == "m is the first that can serve it."
    assert [attempt.usage for attempt in found.attempts] == [FINISHED, None]
    assert decisions.short("r").startswith(b"after=m (node_failed); node=studio; ")


def test_where_there_was_no_choice_nothing_is_recorded_of_it(decisions: Decisions) -> None:
    decisions.chosen(ticket(), "")
    assert len(decisions) == 0


def test_a_request_is_found_by_every_id_that_its_caller_saw(decisions: Decisions) -> None:
    decisions.granted(ticket("0123456789-ab-1"), decision())
    for prefix in ("chatcmpl-", "resp_", "msg_", "req_"):
        assert decisions.find(client_id(prefix, NODE, "0123456789-ab-1")) is not None
    assert decisions.find(f"fc_{NODE}-0123456789-ab-1-i3") is not None
    assert decisions.find(client_id("req_", NODE, "0123456789-ab-2")) is None
    assert decisions.find("nothing") is None


def test_only_the_latest_requests_are_kept() -> None:
    decisions = Decisions(kept=3)
    for number in range(5):
        decisions.granted(ticket(str(number)), decision())
    assert len(decisions) == 3
    assert [bool(decisions.find(str(number))) for number in range(5)] == [False] * 2 + [True] * 3


def test_words_on_a_forgotten_request_are_passed_over(decisions: Decisions) -> None:
    decisions.first_content("r", 1.0)
    decisions.ended("r", "served")
    decisions.on_verdict(Verdict(lease("r"), 1.0, failed=False, usage=FINISHED))
    assert decisions.short("r") == b"" and len(decisions) == 0


def test_the_short_form_leaves_out_terms_that_are_nothing(decisions: Decisions) -> None:
    decisions.granted(ticket(), decision())
    assert decisions.short("r") == (
        b"node=studio; prefill=1.2s; decode_interference=0.1s; cached=5800/6100; total=1.3s; "
        b"next=mini 3.4s"
    )


def test_the_short_form_marks_what_is_a_guess_at_a_server_s_cache() -> None:
    guess = NodeTerms("a", "ollama", cached_tokens=58, prompt_tokens=61, is_estimated=True)
    summary = short(Decision("r", "m", 0.0, "a", (guess,)))
    assert summary == b"node=ollama; prefill=0.0s; cached=58/61 estimated; total=0.0s"


def test_the_short_form_is_ascii_whatever_a_node_is_called() -> None:
    alone = Decision("r", "m", 0.0, "a", (NodeTerms("a", "büro"),))
    assert short(alone) == b"node=b?ro; prefill=0.0s; cached=0/0; total=0.0s"
    assert short(Decision("r", "m", 0.0, "", (LOST,))) == b"node="


def test_every_term_of_a_cost_has_a_name() -> None:
    assert set(TERMS) == {each.name for each in fields(NodeTerms) if each.name.endswith("_s")}
