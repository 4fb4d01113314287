"""A choice of tools demands calls, or narrows them, of tools that are there."""

from collections.abc import Callable

import pytest

from node.dialects.tool_choice import (
    AUTO,
    NO_CALLS,
    ToolChoice,
    allowed,
    check_arguments,
    named,
    required,
)
from node.errors import BadRequest
from node.request import Tool

TOOLS = (Tool({"name": "f"}), Tool({"name": "g"}))


def test_no_calls_means_that_the_model_is_shown_no_tools() -> None:
    assert not NO_CALLS.shows_tools
    assert ToolChoice().shows_tools


def test_a_demand_is_for_any_tool_and_a_name_for_one_call_of_it() -> None:
    assert required(TOOLS, "choice") == ToolChoice(must_call=True)
    one = ToolChoice(must_call=True, callable_tools=("g",), is_single=True)
    assert named("g", TOOLS, "choice.name") == one


def test_allowed_tools_are_told_once_each_in_their_order() -> None:
    assert allowed(["g", "f", "g"], TOOLS, "choice", must=False).callable_tools == ("g", "f")
    assert allowed(["f"], TOOLS, "choice", must=True).must_call


@pytest.mark.parametrize(
    "choose",
    [
        lambda: required((), "at"),
        lambda: named("x", TOOLS, "at"),
        lambda: named("f", (), "at"),
        lambda: allowed([], TOOLS, "at", must=False),
        lambda: allowed(["f", "x"], TOOLS, "at", must=True),
    ],
)
def test_what_no_tool_can_answer_is_refused_with_its_field(
    choose: Callable[[], ToolChoice],
) -> None:
    with pytest.raises(BadRequest, match=r"\.$") as caught:
        choose()
    assert caught.value.param == "at"


def typed(kind: object, **function: object) -> Tool:
    return Tool({"name": "t", "parameters": {"type": kind}, **function}, "tools[2].parameters")


@pytest.mark.parametrize("kind", ["string", ["string", "null"], [], "Object"])
def test_arguments_that_are_held_fit_no_schema_that_takes_no_object(kind: object) -> None:
    for tool, choice in (
        (typed(kind), required([typed(kind)], "choice")),
        (typed(kind), named("t", [typed(kind)], "choice")),
        (typed(kind, strict=True), AUTO),
    ):
        with pytest.raises(BadRequest, match=r"\.$") as caught:
            check_arguments([*TOOLS, tool], choice)
        assert caught.value.param == "tools[2].parameters"


def test_arguments_that_are_not_held_may_have_any_schema() -> None:
    tools = [*TOOLS, typed("string")]
    for choice in (AUTO, named("f", tools, "choice"), allowed(["g"], tools, "choice", must=True)):
        check_arguments(tools, choice)
    check_arguments([typed("string", strict=True)], NO_CALLS)
    check_arguments(
        [typed(["object", "null"]), typed("object"), typed(None), *TOOLS],
        ToolChoice(must_call=True),
    )
