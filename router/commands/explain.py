"""`router explain`: shows where a request would go or went, and why."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

from router.api.admin.explain_views import (
    AttemptRow,
    CostRow,
    DecidedRow,
    DecisionRow,
    RequestUsageRow,
)
from router.commands import console, wording
from router.commands.client import AdminClient, CommandFailed, in_path, read_row
from router.commands.tables import Cell

STANDARD_INPUT = Path("-")
BODY_HINT = "REQUEST.json is the body of a request, as a client sends it; - reads standard input."
MEANINGS = {
    "queue": "work that is ahead of it",
    "prefill": "its tokens that are not cached",
    "restore": "cached ones that are on disk",
    "load": "the model has to be loaded",
    "wake": "the node sleeps, and is woken",
    "evict": "what others will compute again",
    "decode_interference": "for streams that run there",
    "contention": "its session's next turns wait for others",
    "externality": "other sessions wait for it",
    "failure_penalty": "the node failed lately",
    "migration": "its session is warm elsewhere",
}
"""Short explanations of the cost terms."""
_LEAST_SHOWN_S = 0.005
"""A smaller term would be shown as 0.00."""


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """The options of the command."""

    file: Path | None
    request_id: str | None
    path: str | None
    session: str | None


def run(client: AdminClient, wanted: ExplainOptions, *, as_json: bool) -> None:
    if (wanted.file is None) == (wanted.request_id is None):
        raise CommandFailed(
            "Give REQUEST.json, the body of a request, or --request-id, the id of an earlier one."
        )
    if wanted.file is not None:
        _explain(client, wanted.file, wanted, as_json=as_json)
        return
    if wanted.path is not None or wanted.session is not None:
        raise CommandFailed("--path and --session are for a REQUEST.json; leave them out.")
    _explain_past(client, wanted.request_id or "", as_json=as_json)


def _explain(client: AdminClient, file: Path, wanted: ExplainOptions, *, as_json: bool) -> None:
    """Shows where the request would go at this time; nothing is sent to a node."""
    body: dict[str, Any] = {"body": _read_body(file)}
    if wanted.path is not None:
        body["path"] = wanted.path
    if wanted.session is not None:
        body["headers"] = {"x-session-id": wanted.session}
    response = client.post("/explain", body)
    if as_json:
        console.print_json(response)
        return
    decision = read_row(DecisionRow, response)
    if decision.target_reason:
        console.print_line(decision.target_reason)
    _print_costs(decision)
    console.print_line(decision.reason)


def _explain_past(client: AdminClient, request_id: str, *, as_json: bool) -> None:
    """Shows where a request went, and its outcome."""
    response = client.get(f"/explain/{in_path(request_id)}")
    if as_json:
        console.print_json(response)
        return
    decided = read_row(DecidedRow, response)
    model = decided.requested_model
    if decided.model != decided.requested_model:
        model += f" (now {decided.model})"
    console.print_line(
        f"Request {request_id}: {decided.path}, {model}, {decided.priority}, "
        f"{wording.span(decided.arrived_ago_s)} ago"
    )
    if decided.target_reason:
        console.print_line(decided.target_reason)
    if decided.failed_targets:
        console.print_line(
            f"Fell back to {decided.model} after {', '.join(decided.failed_targets)}."
        )
    for number, attempt in enumerate(decided.attempts, 1):
        if len(decided.attempts) > 1:
            console.print_line(f"Attempt {number}:", style="bold")
        _print_attempt(attempt)
    if rejected := decided.rejected:
        place = f" It stood at position {rejected.position}." if rejected.position else ""
        kind = wording.state_text(rejected.kind)
        console.print_line(f"Rejected ({kind}): {rejected.reason}{place}", style="yellow")


def _read_body(file: Path) -> dict[str, Any]:
    name = "The standard input" if file == STANDARD_INPUT else str(file)
    try:
        data = sys.stdin.buffer.read() if file == STANDARD_INPUT else file.read_bytes()
        return msgspec.json.decode(data, type=dict[str, Any])
    except OSError as error:
        raise CommandFailed(f"{name} cannot be read ({error.strerror}).") from error
    except msgspec.ValidationError as error:
        raise CommandFailed(f"{name} is not a JSON object. {BODY_HINT}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CommandFailed(f"{name} is not JSON ({error}). {BODY_HINT}") from error


# --- tables ---


def _print_costs(decision: DecisionRow) -> None:
    """A row per node; a row per term where the window has no room for that many columns."""
    costs = [cost for cost in decision.costs if not cost.excluded]
    terms = _terms_of(costs)
    heads = ["Node", *(f">{_head(term)}" for term in terms), ">total", ">cached / prompt"]
    rows = [_cost_cells(cost, terms) for cost in costs]
    if console.fits(heads, rows):
        console.print_table(heads, rows)
    else:
        _print_by_term(heads, rows)
    for cost in decision.costs:
        if cost.excluded:
            console.print_line(f"{cost.node}: {cost.excluded}")
    if costs:
        console.print_line("Seconds until the first token, and those taken from others; * chosen.")
    if meanings := [f"{_head(term)}: {MEANINGS[term]}" for term in terms if term in MEANINGS]:
        console.print_line(f"{'; '.join(meanings)}.")


def _print_by_term(heads: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
    """The same table with a column per node, in blocks of as many nodes as fit the window."""
    rest = list(rows)
    while rest:
        count = len(rest)
        while count > 1 and not console.fits(*_columns_of(heads, rest[:count])):
            count -= 1
        console.print_table(*_columns_of(heads, rest[:count]))
        del rest[:count]


def _columns_of(
    heads: Sequence[str], nodes: Sequence[Sequence[Text]]
) -> tuple[list[str], list[list[Cell]]]:
    """Heads and rows of a table with a column per node."""
    table: list[list[Cell]] = [[head.removeprefix(">")] for head in heads[1:]]
    for node in nodes:
        for row, cell in zip(table, node[1:], strict=True):
            row.append(Text(cell.plain.replace(" / ", " /\n"), cell.style))
    return ["", *(f">{node[0].plain}" for node in nodes)], table


def _head(term: str) -> str:
    """The term as the head of a column, which wraps between words."""
    return term.replace("_", " ")


def _terms_of(costs: Sequence[CostRow]) -> list[str]:
    """Returns the names of terms that are large enough on any node, in the router's order."""
    named = [term for cost in costs for term in cost.terms_s]
    return [
        term
        for term in dict.fromkeys(named)
        if any(cost.terms_s.get(term, 0.0) >= _LEAST_SHOWN_S for cost in costs)
    ]


def _cost_cells(cost: CostRow, terms: Sequence[str]) -> list[Text]:
    style = "bold green" if cost.chosen else ""
    estimated = " (estimated)" if cost.estimated else ""
    cached = f"{wording.number(cost.cached_tokens)} / {wording.number(cost.prompt_tokens)}"
    cells = [
        f"{cost.node} *" if cost.chosen else cost.node,
        *(f"{cost.terms_s.get(term, 0.0):.2f}" for term in terms),
        f"{cost.total_s:.2f}",
        f"{cached}{estimated}",
    ]
    return [Text(text, style) for text in cells]


def _print_attempt(attempt: AttemptRow) -> None:
    decision, usage = attempt.decision, attempt.usage
    _print_costs(decision)
    console.print_line(decision.reason)
    console.print_line(f"It waited {decision.waited_s:.2f} s in the router.")
    if chosen := next((cost for cost in decision.costs if cost.chosen), None):
        rows = _comparison(attempt, chosen)
        console.print_table(("", ">Expected", ">Actual"), rows)
    console.print_line(_outcome(attempt.outcome, usage))


def _comparison(attempt: AttemptRow, chosen: CostRow) -> list[tuple[str, str, str]]:
    """Compares the expected with the measured values of the chosen node."""
    usage = attempt.usage
    return [
        (
            "Prompt tokens",
            wording.number(chosen.prompt_tokens),
            wording.number(usage.prompt_tokens if usage else None),
        ),
        (
            "of them cached",
            wording.number(chosen.cached_tokens),
            wording.number(usage.cached_tokens if usage else None),
        ),
        (
            "Prefill",
            _seconds(chosen.terms_s.get("prefill")),
            _seconds(usage.prefill_s if usage else None),
        ),
        ("First token", _seconds(attempt.expected_ttft_s), _seconds(attempt.ttft_s)),
    ]


def _outcome(outcome: str | None, usage: RequestUsageRow | None) -> str:
    if outcome is None:
        return "It is still running."
    text = f"Outcome: {wording.state_text(outcome)}"
    if usage is None:
        return f"{text}; its node has not reported its usage."
    return f"{text} ({usage.reason}), {wording.number(usage.completion_tokens)} tokens."


def _seconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:.2f} s"
