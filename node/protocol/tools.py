"""Which tools of a body a model is shown, and what of its history others have run.

Router and agent leave out the same, so that a prefix chain tells of what a prompt shows.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

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
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    )
)
"""Items of `/v1/responses` that tell what a host did, or that only it can read."""
CLIENT_CALLS: Mapping[str, tuple[str, str]] = {
    "apply_patch_call": ("apply_patch", "operation"),
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
}
"""Items of `/v1/responses` that tell what a client ran for another server's model: the tool's name,
and the field that has its arguments. The item of the result is named `…_output`."""
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
"""The same of an assistant's blocks in `/v1/messages`."""

_encode = msgspec.json.Encoder(order="sorted").encode
_OWN_FIELDS = ("function", "parameters", "input_schema")
"""What tells that a client has made a tool, whatever it calls its type."""
_BUILT_IN = "builtin_function"
"""A host's, though it has a field `function`."""
_CLIENT_RUN = re.compile(r"(?P<name>bash|text_editor|memory|computer)_\d{8}")


def output_of(output: object) -> object:
    """The output of a call's item: text, or parts; another object or list as its JSON."""
    if isinstance(output, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in output
    ):
        return output
    return _encode(output).decode() if isinstance(output, list | Mapping) else output


def client_run(kind: object) -> str | None:
    """The name of one of Anthropic's tools that a client runs and that is declared by its type
    alone, without the date; None of another type."""
    found = _CLIENT_RUN.fullmatch(kind) if isinstance(kind, str) else None
    return found["name"] if found else None


def is_hosted(tool: Mapping[str, Any]) -> bool:
    """Whether only a host could run the tool. A type that is not known counts as a host's, unless
    the tool has a schema of its own: hosts have new ones every few weeks."""
    kind = tool.get("type")
    if not isinstance(kind, str) or kind in DECLARED or client_run(kind) is not None:
        return False
    return kind == _BUILT_IN or not any(tool.get(field) for field in _OWN_FIELDS)
