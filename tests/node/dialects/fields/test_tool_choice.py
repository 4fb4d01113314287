"""A tool choice forces or limits calls, of declared tools only."""

from collections.abc import Callable

import pytest

from node.dialects.fields.tool_choice import (
    AUTO,
    NO_CALLS,
    DeclaredTools,
    ToolChoice,
    allowed,
    check_arguments,
    hosted_only,
    hosted_tool,
    named,
    required,
)
from node.errors import BadRequest, Unsupported
from node.request import LeftOut, Tool

TOOLS = (Tool({"name": "f"}), Tool({"name": "g"}))
DECLARED = DeclaredTools(TOOLS, (LeftOut("tools[2]", "web_search", "search"),))
NONE = DeclaredTools()


def test_no_calls_means_that_the_model_is_shown_no_tools() -> None:
    assert not NO_CALLS.shows_tools
    assert ToolChoice().shows_tools


def test_a_demand_is_for_any_tool_and_a_name_for_one_call_of_it() -> None:
    assert required(DECLARED, "choice") == ToolChoice(must_call=True)
    one = ToolChoice(must_call=True, callable_tools=("g",), is_single=True)
    assert named("g", DECLARED, "choice.name") == one


def test_allowed_tools_are_listed_once_each_in_their_order() -> None:
    assert allowed(["g", "f", "g"], DECLARED, "choice", must=False).callable_tools == ("g", "f")
    assert allowed(["f"], DECLARED, "choice", must=True).must_call


@pytest.mark.parametrize(
    "choose",
    [
        lambda: required(NONE, "at"),
        lambda: named("x", DECLARED, "at"),
        lambda: named("f", NONE, "at"),
        lambda: allowed([], DECLARED, "at", must=False),
        lambda: allowed(["f", "x"], DECLARED, "at", must=True),
    ],
)
def test_what_no_tool_can_answer_is_refused_with_its_field(
    choose: Callable[[], ToolChoice],
) -> None:
    with pytest.raises(BadRequest, match=r"\.$") as caught:
        choose()
    assert caught.value.param == "at"


@pytest.mark.parametrize(
    "choose",
    [
        lambda: required(DeclaredTools((), DECLARED.left_out), "at"),
        lambda: named("search", DECLARED, "at"),
        lambda: allowed(["f", "search"], DECLARED, "at", must=False),
        lambda: hosted_only("web_search", "at", must=True),
    ],
)
def test_a_forced_tool_that_only_a_host_could_run_is_refused_with_its_field(
    choose: Callable[[], ToolChoice],
) -> None:
    with pytest.raises(
        Unsupported, match=r"^at forces .*search, which only a host .*\.$"
    ) as caught:
        choose()
    assert caught.value.param == "at"


def test_tools_that_only_a_host_could_run_may_be_allowed_and_then_nothing_is_called() -> None:
    assert hosted_only("web_search", "at", must=False) == ToolChoice(callable_tools=())


def test_a_tool_that_only_a_host_could_run_is_reported_with_its_path() -> None:
    given = {"type": "web_search_20250305", "name": "web_search"}
    assert hosted_tool(given, "tools[3]") == LeftOut("tools[3]", given["type"], "web_search")
    assert hosted_tool({"type": "mcp", "name": 5}, "t") == LeftOut("t", "mcp")
    assert hosted_tool({"type": "function"}, "t") is None


def test_a_forced_tool_whose_grammar_cannot_be_enforced_is_refused_with_its_field() -> None:
    tool = Tool({"name": "t"}, "tools[1].format.definition", is_custom=True, is_unenforceable=True)
    for choice in (ToolChoice(must_call=True), named("t", DeclaredTools((tool,)), "choice")):
        with pytest.raises(Unsupported) as caught:
            check_arguments([*TOOLS, tool], choice)
        assert caught.value.param == "tools[1].format.definition"
    for choice in (AUTO, NO_CALLS, named("f", DECLARED, "choice")):
        check_arguments([*TOOLS, tool], choice)


def typed(kind: object, **function: object) -> Tool:
    return Tool({"name": "t", "parameters": {"type": kind}, **function}, "tools[2].parameters")


@pytest.mark.parametrize("kind", ["string", ["string", "null"], [], "Object"])
def test_constrained_arguments_fit_no_schema_that_accepts_no_object(kind: object) -> None:
    for tool, choice in (
        (typed(kind), required(DeclaredTools((typed(kind),)), "choice")),
        (typed(kind), named("t", DeclaredTools((typed(kind),)), "choice")),
        (typed(kind, strict=True), AUTO),
    ):
        with pytest.raises(BadRequest, match=r"\.$") as caught:
            check_arguments([*TOOLS, tool], choice)
        assert caught.value.param == "tools[2].parameters"


def test_unconstrained_arguments_may_have_any_schema() -> None:
    tools = (*TOOLS, typed("string"))
    some = DeclaredTools(tools)
    for choice in (AUTO, named("f", some, "choice"), allowed(["g"], some, "choice", must=True)):
        check_arguments(tools, choice)
    check_arguments([typed("string", strict=True)], NO_CALLS)
    check_arguments(
        [typed(["object", "null"]), typed("object"), typed(None), *TOOLS],
        ToolChoice(must_call=True),
    )
