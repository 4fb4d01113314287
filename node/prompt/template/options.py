"""Template variables for a client's thinking options.

Templates have no common name for thinking. `enable_thinking` is set under each known name; if
thinking has no variable of its own, as an effort. An effort that the template refuses is raised to
the next one that it accepts. Variables that a template never reads change nothing.
"""

from typing import Any

from node.prompt.template.abilities import EFFORTS, Abilities
from node.request import TemplateOptions


def template_variables(options: TemplateOptions, abilities: Abilities) -> dict[str, Any]:
    """Returns the variables that the template gets besides messages and tools."""
    given = options.kwargs
    thinking, effort = options.enable_thinking, options.reasoning_effort
    own = given.get("enable_thinking")
    # The client's own variables override what is derived from one of them.
    variables = _thinking(on=own, abilities=abilities) if isinstance(own, bool) else {}
    variables |= given
    if thinking is not None:
        variables |= _thinking(on=thinking, abilities=abilities)
    if effort is not None:
        variables |= _effort(effort, abilities)
    return variables


def _thinking(*, on: bool, abilities: Abilities) -> dict[str, Any]:
    if on:
        named = {"enable_thinking": True, "thinking": True, "thinking_mode": "enabled"}
        return {**named, **abilities.on_efforts}
    return {
        "enable_thinking": False,
        "thinking": False,
        "thinking_mode": "disabled",
        # Otherwise, thinking is unlimited.
        "thinking_budget": 0,
        **abilities.off_efforts,
    }


def _effort(effort: str, abilities: Abilities) -> dict[str, Any]:
    variables: dict[str, Any] = {"reasoning_effort": effort}
    for name, taken in abilities.efforts.items():
        variables[name] = effort
        if effort not in taken and effort in EFFORTS and taken:
            higher = EFFORTS[EFFORTS.index(effort) :]
            variables[name] = next((each for each in taken if each in higher), taken[-1])
    return variables
