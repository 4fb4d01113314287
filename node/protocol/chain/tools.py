"""Rules for the tools of a body that a prompt shows, and for tool calls in its history that a host
ran.

Router and agent leave out the same, so that a prefix hash chain names what a prompt shows.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from node.protocol.chain.canonical import model_name

DECLARED = ("function", "custom", "namespace")
"""Types of tools that a client declares by itself."""
HOSTED_ITEMS = frozenset(
    (
        "code_interpreter_call",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "file_search_call",
        "image_generation_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "web_search_call",
    )
)
"""Types of items of `/v1/responses` that record a host's work, or that only the host can read."""
CLIENT_CALLS: Mapping[str, tuple[str, str]] = {
    "apply_patch_call": ("apply_patch", "operation"),
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "tool_search_call": ("tool_search", "arguments"),
}
"""Types of items of `/v1/responses` that record calls run by the client, other than function calls:
the tool's name, and the field with its arguments."""
SEARCH = "tool_search"
"""Type of the tool with which a model finds more tools, and its name as a function. The host or the
client runs it."""
SEARCH_ITEMS = ("tool_search_call", "tool_search_output")
ADDING = "additional_tools"
"""Type of the item that adds tools to the body's own."""
HOSTED_BLOCKS = frozenset(
    (
        "advisor_tool_result",
        "bash_code_execution_tool_result",
        "code_execution_tool_result",
        "mcp_tool_result",
        "mcp_tool_use",
        "server_tool_use",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "web_fetch_tool_result",
        "web_search_tool_result",
    )
)
"""Types of an assistant's blocks in `/v1/messages` that record a host's work."""

_encode = msgspec.json.Encoder(order="sorted").encode
NONE_FOUND = "No tools were found."
"""Text that a prompt shows as the result of a tool search without results."""
_CALLABLE = "From here on these functions can be called too, each given as JSON:"
_SHOWN = ("description", "parameters", "format")
_CUSTOM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
_OWN_FIELDS = ("function", "parameters", "input_schema")
"""Fields that mark a tool as the client's, whatever its type is called."""
_BUILT_IN = "builtin_function"
"""Type of a host's tool although it has a field `function`."""
_CLIENT_RUN = re.compile(r"(?P<name>bash|text_editor|memory|computer)_\d{8}")


def is_hosted_item(kind: object, call_id: object) -> bool:
    """True if the model gets nothing of an item of `/v1/responses`, since a host did its work. Such
    a search has no call id."""
    return kind in HOSTED_ITEMS or (kind in SEARCH_ITEMS and not isinstance(call_id, str))


def tools_text(tools: object) -> str:
    """Text of a message that declares tools within the conversation, as the model is to call them;
    empty without any."""
    lines = [_encode(each).decode() for each in _declared(tools, None)]
    return "\n".join((_CALLABLE, *lines)) if lines else ""


def _declared(tools: object, namespace: object) -> Iterator[Mapping[str, Any]]:
    given = tools if isinstance(tools, list) else ()
    for tool in (each for each in given if isinstance(each, Mapping)):
        name = tool.get("name")
        if tool.get("type") == "namespace":
            yield from _declared(tool.get("tools"), name)
        elif isinstance(name, str) and not is_hosted(tool):
            fields = {field: tool[field] for field in _SHOWN if tool.get(field) is not None}
            if tool.get("type") == "custom":
                fields["parameters"] = _CUSTOM
            yield {"name": model_name(name, namespace), **fields}


def output_of(output: object) -> object:
    """The output of a call's item: text or parts; any other object or list as JSON."""
    if isinstance(output, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in output
    ):
        return output
    return _encode(output).decode() if isinstance(output, list | Mapping) else output


def client_run(kind: object) -> str | None:
    """Name, without the date, of one of Anthropic's tools that a client runs and declares by its
    type alone; None for any other type."""
    found = _CLIENT_RUN.fullmatch(kind) if isinstance(kind, str) else None
    return found["name"] if found else None


def is_hosted(tool: Mapping[str, Any]) -> bool:
    """True if only a host could run the tool. An unknown type counts as a host's unless the tool
    has a schema of its own, since hosts add new ones every few weeks."""
    kind = tool.get("type")
    if not isinstance(kind, str) or kind in DECLARED or client_run(kind) is not None:
        return False
    if kind == SEARCH:
        return tool.get("execution") != "client"
    return kind == _BUILT_IN or not any(tool.get(field) for field in _OWN_FIELDS)
