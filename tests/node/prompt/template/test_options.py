"""Template variables for a client's thinking options."""

from dataclasses import replace
from typing import Any

import pytest

from node.prompt.template.options import template_variables
from node.request import TemplateOptions
from tests.node.prompt.template.samples import ALL

ON = {"enable_thinking": True, "thinking": True, "thinking_mode": "enabled"}
OFF = {
    "enable_thinking": False,
    "thinking": False,
    "thinking_mode": "disabled",
    "thinking_budget": 0,
}
CHOOSY = replace(
    ALL,
    efforts={"thinking_effort": ("low", "high")},
    off_efforts={"thinking_effort": "none"},
    on_efforts={"thinking_effort": "high"},
)


def variables(
    thinking: bool | None = None, effort: str | None = None, **kwargs: Any
) -> dict[str, Any]:
    return template_variables(TemplateOptions(thinking, effort, kwargs), ALL)


def test_no_variables_are_set_where_the_client_sets_none() -> None:
    assert variables() == {}


def test_thinking_goes_in_under_each_name() -> None:
    assert variables(thinking=True) == ON
    assert variables(thinking=False) == OFF


def test_the_named_fields_stand_against_the_clients_variables() -> None:
    given = variables(thinking=True, effort="low", enable_thinking=False, reasoning_effort="high")
    assert given["enable_thinking"] is True
    assert given["thinking"] is True
    assert given["reasoning_effort"] == "low"


def test_the_clients_variable_for_thinking_has_all_names() -> None:
    assert variables(enable_thinking=False) == OFF
    assert variables(enable_thinking=False, thinking=True)["thinking"] is True
    assert variables(enable_thinking="auto", more=1) == {"enable_thinking": "auto", "more": 1}


@pytest.mark.parametrize(
    ("effort", "given"),
    [("low", "low"), ("minimal", "low"), ("medium", "high"), ("max", "high"), ("odd", "odd")],
)
def test_an_effort_is_the_next_higher_one_that_is_accepted(effort: str, given: str) -> None:
    options = TemplateOptions(reasoning_effort=effort)
    assert template_variables(options, CHOOSY)["thinking_effort"] == given


def test_thinking_is_an_effort_where_it_has_no_other_name() -> None:
    off = template_variables(TemplateOptions(enable_thinking=False), CHOOSY)
    on = template_variables(TemplateOptions(enable_thinking=True), CHOOSY)
    assert (off["thinking_effort"], on["thinking_effort"]) == ("none", "high")
