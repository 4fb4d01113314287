"""`/admin/explain`: where a request would go or has gone, and why."""

import time

import msgspec

from node.protocol.messages import Finished
from router.api.admin.explain_views import (
    AttemptRow,
    CostRow,
    DecidedRow,
    DecisionRow,
    ExplainBody,
    RejectRow,
    RequestUsageRow,
)
from router.api.admin.gate import CurrentAdmin
from router.api.body_room import BodyRoom
from router.api.tickets import Tickets
from router.api.v1 import RELAYED_PATHS
from router.errors import BadRequest, UnknownModel, UnknownRequest
from router.records.decisions import KEPT, TERMS, AttemptRecord, DecisionRecord
from router.types import Decision, NodeTerms, Reject

LIST_MODELS = "`router models` lists all models."


async def explain(admin: CurrentAdmin, question: ExplainBody) -> DecisionRow:
    """Runs the scheduler without sending anything to a node, with the priority and salt of the
    admin's own key."""
    if question.path not in RELAYED_PATHS:
        paths = ", ".join(sorted(RELAYED_PATHS))
        raise BadRequest(f"path: a request goes to one of {paths}.", param="path")
    try:
        headers = [
            (name.lower().encode(), value.encode()) for name, value in question.headers.items()
        ]
        body = msgspec.json.encode(question.body)
    except UnicodeEncodeError as error:
        raise BadRequest(f"The request has an incomplete character: {error.reason}.") from error
    core = admin.core
    tickets, now_s = Tickets(core, BodyRoom()), time.monotonic()
    try:
        request = await tickets.read(admin.caller, question.path, headers, body, now_s)
        ticket = await tickets.next(request)
    except UnknownModel as error:
        raise UnknownModel(f"{error.message} {LIST_MODELS}", param=error.param) from error
    return _decision_row(core.traffic.explain(ticket), request.reason)


async def explain_request(admin: CurrentAdmin, request_id: str) -> DecidedRow:
    """Returns the decisions for one of the latest requests."""
    decided = admin.core.decisions.find(request_id)
    if decided is None:
        raise UnknownRequest(
            f"The router knows nothing of a request {request_id!r}; it remembers the last "
            f"{KEPT:,} since its start, by any id that their callers saw."
        )
    return _decided_row(decided)


def _decided_row(decided: DecisionRecord) -> DecidedRow:
    return DecidedRow(
        request_id=decided.request_id,
        path=decided.path,
        requested_model=decided.requested_model,
        model=decided.model,
        priority=decided.priority.name.lower(),
        arrived_ago_s=max(0.0, time.monotonic() - decided.arrived_s),
        attempts=tuple(map(_attempt_row, decided.attempts)),
        target_reason=decided.why,
        failed_targets=tuple(f"{model} ({code})" for model, code in decided.failed),
        rejected=_reject_row(decided.reject) if decided.reject else None,
    )


def _attempt_row(attempt: AttemptRecord) -> AttemptRow:
    return AttemptRow(
        decision=_decision_row(attempt.decision),
        expected_ttft_s=attempt.expected_ttft_s,
        ttft_s=attempt.ttft_s,
        outcome=attempt.outcome or None,
        usage=_usage_row(attempt.usage) if attempt.usage else None,
    )


def _usage_row(usage: Finished) -> RequestUsageRow:
    return RequestUsageRow(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        queue_s=usage.queue_s,
        prefill_s=usage.prefill_s,
        decode_s=usage.decode_s,
        ttft_s=usage.ttft_s,
        reason=usage.reason.value,
    )


def _reject_row(reject: Reject) -> RejectRow:
    return RejectRow(
        kind=reject.kind.value,
        reason=reject.reason,
        position=reject.position,
        wait_s=reject.wait_s,
    )


def _decision_row(decision: Decision, why: str = "") -> DecisionRow:
    chosen = decision.chosen
    return DecisionRow(
        model=decision.model,
        node=chosen.name if chosen else None,
        waited_s=decision.waited_s,
        reason=decision.reason,
        target_reason=why,
        costs=tuple(_cost_row(terms, chosen=terms is chosen) for terms in decision.nodes),
    )


def _cost_row(terms: NodeTerms, *, chosen: bool) -> CostRow:
    return CostRow(
        node_id=terms.node_id,
        node=terms.name,
        chosen=chosen,
        excluded=terms.excluded or None,
        terms_s={name: getattr(terms, term) for term, name in TERMS.items()},
        total_s=terms.total_s,
        prompt_tokens=terms.prompt_tokens,
        cached_tokens=terms.cached_tokens,
        memory_tokens=terms.memory_tokens,
        estimated=terms.is_estimated,
    )
