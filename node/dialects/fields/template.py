"""Options of a body for the chat template, besides messages and tools."""

from collections.abc import Mapping
from typing import Any, Literal

from node.dialects.fields.json_values import json_without_null
from node.errors import BadRequest
from node.protocol.template_kwargs import RESERVED_KWARGS
from node.request import TemplateOptions

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def template_options(
    *, thinking: bool | None, effort: Effort | None, kwargs: Mapping[str, Any] | None
) -> TemplateOptions:
    """Combines `enable_thinking`, an effort and `chat_template_kwargs`; the effort `none` turns
    thinking off. Raises `BadRequest`."""
    kept = _own_variables(kwargs or {})
    if effort != "none":
        return TemplateOptions(thinking, effort, kept)
    if thinking:
        raise BadRequest("enable_thinking contradicts an effort of none.", param="enable_thinking")
    return TemplateOptions(enable_thinking=False, kwargs=kept)


def _own_variables(given: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in given:
        if name in RESERVED_KWARGS:
            path = f"chat_template_kwargs.{name}"
            raise BadRequest(f"{path} must not be set by the client.", param=path)
    kept: Mapping[str, Any] = json_without_null(dict(given), "chat_template_kwargs")
    return kept
