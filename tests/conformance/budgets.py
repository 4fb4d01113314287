"""Thinking budgets: a model without sense never ends its reasoning; the engine does."""

from collections.abc import Iterator

from node.ipc.generate import GenerateRequest, OutputFormat
from node.ipc.messages import PartKind
from node.parsing.output_parser import OutputParser
from node.parsing.registry import layout_for, reasoning_names
from tests.conformance.random_model import Drawn, RandomModel, with_random_model
from tests.conformance.result import Result

BUDGETS = (0, 1, 17, None)
MAX_TOKENS = 160
_TOOL_CALLS = "none"


def check_budgets() -> Result:
    """Each reasoning format, sequences of different budgets in each batch."""
    return with_random_model(_check)


def _check(model: RandomModel) -> Result:
    # Where no prompt begins the reasoning, it cannot be had from a model without sense.
    cases = [(name, budget) for name in reasoning_names() if _begins(name) for budget in BUDGETS]
    drawn = model.draw([_request(model, name, budget) for name, budget in cases])
    result = Result(total=len(cases))
    for (name, budget), row in zip(cases, drawn.values(), strict=True):
        problems = list(_problems(model, name, budget, row))
        result.passed += not problems
        result.failing += [f"{name}, budget {budget}: {each}" for each in problems]
    return result


def _begins(name: str) -> bool:
    opener = layout_for(name, _TOOL_CALLS).opener
    return OutputParser(OutputFormat(name, _TOOL_CALLS, opener)).in_reasoning


def _request(model: RandomModel, name: str, budget: int | None) -> GenerateRequest:
    return GenerateRequest(
        uid=f"{name} {budget}",
        tokens=model.prompt(),
        max_tokens=MAX_TOKENS,
        sampling=model.sampling(1, ends=False),
        output=OutputFormat(name, _TOOL_CALLS, layout_for(name, _TOOL_CALLS).opener),
        thinking_tokens=budget,
    )


def _problems(model: RandomModel, name: str, budget: int | None, drawn: Drawn) -> Iterator[str]:
    if drawn.refused is not None or drawn.usage is None:
        yield f"refused: {drawn.refused}"
        return
    usage = drawn.usage
    if budget is None:
        if drawn.text() or usage.reasoning_overflow_tokens:
            yield f"an end of the reasoning that nobody forced: {drawn.text()[:60]!r}"
        return
    yield from _after_budget(model, name, budget, drawn)


def _after_budget(model: RandomModel, name: str, budget: int, drawn: Drawn) -> Iterator[str]:
    assert drawn.usage is not None
    usage = drawn.usage
    closing_tokens = model.count_tokens(layout_for(name, _TOOL_CALLS).closing)
    # A torn character is completed first.
    most = budget + closing_tokens + 3
    if not budget <= usage.reasoning_tokens <= most:
        yield f"{usage.reasoning_tokens} tokens of reasoning, of {most} at most"
    if usage.reasoning_tokens - usage.reasoning_overflow_tokens != budget:
        yield f"{usage.reasoning_overflow_tokens} of {usage.reasoning_tokens} reported as beyond it"
    kinds = [part.kind for part in drawn.parts]
    if PartKind.CONTENT not in kinds:
        yield f"no content behind {drawn.text(PartKind.REASONING)[:60]!r}"
    elif PartKind.REASONING in kinds[kinds.index(PartKind.CONTENT) :]:
        yield "reasoning behind the content"
