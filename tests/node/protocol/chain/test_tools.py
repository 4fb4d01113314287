"""Tools that only a host could run."""

import json
from typing import Any

import pytest

from node.protocol.chain.prefix import Chain, PrefixHasher, read_fields
from node.protocol.chain.tools import client_run, is_hosted, is_hosted_item, output_of
from tests.node.protocol.bodies import CHAT, MESSAGES, RESPONSES, chain_of


@pytest.mark.parametrize(
    "kind",
    [
        "web_search",
        "web_search_preview_2025_03_11",
        "image_generation",
        "tool_search",
        "file_search",
        "code_interpreter",
        "computer_use_preview",
        "mcp",
        "local_shell",
        "web_search_20250305",
        "code_execution_20250825",
        "openrouter:web_search",
        "of_next_month",
    ],
)
def test_a_type_that_no_client_declares_by_itself_is_a_host_s(kind: str) -> None:
    assert is_hosted({"type": kind, "name": "x"})
    if kind != "tool_search":
        assert not is_hosted({"type": kind, "input_schema": {"type": "object"}})


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function"},
        {"type": "custom", "name": "x"},
        {"type": "namespace"},
        {"name": "x"},
        {"type": 5},
        {"type": "bash_20250124"},
        {"type": "fucntion", "function": {"name": "x"}},
    ],
)
def test_what_a_client_declares_is_not(tool: dict[str, Any]) -> None:
    assert not is_hosted(tool)


def test_a_search_for_tools_is_a_host_s_unless_the_client_runs_it() -> None:
    search = {"type": "tool_search", "parameters": {"type": "object"}}
    assert is_hosted(search)
    assert is_hosted({**search, "execution": "server"})
    assert not is_hosted({**search, "execution": "client"})
    assert is_hosted_item("tool_search_call", None)
    assert not is_hosted_item("tool_search_output", "c")
    assert is_hosted_item("web_search_call", "c")
    assert not is_hosted_item("message", None)


def test_a_built_in_function_is_a_host_s() -> None:
    assert is_hosted({"type": "builtin_function", "function": {"name": "$web_search"}})


def test_a_client_s_own_tools_have_a_date() -> None:
    assert client_run("text_editor_20250728") == "text_editor"
    assert client_run("memory_20250818") == "memory"
    for other in ("bash", "bash_2025", "web_search_20250305", None, 5):
        assert client_run(other) is None


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (None, None),
        ("x", "x"),
        ([], []),
        ([{"type": "text", "text": "x"}], [{"type": "text", "text": "x"}]),
        ([{"stdout": "x"}], '[{"stdout":"x"}]'),
        ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
        (7, 7),
    ],
)
def test_an_output_is_text_or_parts(output: object, expected: object) -> None:
    assert output_of(output) == expected


# --- chains ----------------------------------------------------------------------------------

FUNCTION: dict[str, Any] = {"name": "f", "parameters": {"type": "object"}}
OWN: dict[str, Any] = {
    CHAT: {"type": "function", "function": FUNCTION},
    MESSAGES: {"name": "f", "input_schema": {"type": "object"}},
    RESPONSES: {"type": "function", **FUNCTION},
}
USER = {"type": "message", "role": "user", "content": "hi"}
ADDING = {"type": "additional_tools", "role": "developer", "tools": [OWN[RESPONSES]]}


def chain(path: str, *tools: Any, **fields: Any) -> Chain:
    name = "input" if path == RESPONSES else "messages"
    return chain_of({name: [USER], "tools": list(tools), **fields}, path)


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_tool_that_is_left_out_is_in_no_chain(path: str) -> None:
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    assert chain(path, hosted, OWN[path], {"type": "mcp"}) == chain(path, OWN[path])
    assert chain(path, OWN[path]).hashes != chain(path).hashes


def test_a_custom_tool_counts_with_its_grammar() -> None:
    for path in (CHAT, RESPONSES):
        made = []
        for more in ({}, {"description": "D."}, {"format": {"type": "grammar", "syntax": "lark"}}):
            fields = {"name": "f", **more}
            custom = {"custom": fields} if path == CHAT else fields
            made.append(chain(path, {"type": "custom", **custom}).hashes)
        made.append(chain(path, OWN[path]).hashes)
        assert len({each[-1] for each in made}) == len(made)


def test_a_tool_that_is_declared_by_its_type_counts_by_it() -> None:
    kinds = ("text_editor_20250124", "text_editor_20250728", "memory_20250818")
    made = [chain(MESSAGES, {"type": kind, "name": "t"}) for kind in kinds]
    made.append(chain(MESSAGES, {"type": kinds[1], "name": "t", "max_characters": 9}))
    assert len({each.head for each in made}) == len(made)
    marked = {"type": kinds[0], "name": "t", "cache_control": {"type": "ephemeral"}}
    assert chain(MESSAGES, marked) == made[0]


def test_calls_of_custom_tools_count_as_the_prompt_shows_them() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}
    function = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"input": "x"}'}
    output = {"call_id": "c", "output": "y"}
    both = [
        chain(RESPONSES, input=[USER, call, {"type": f"{call['type']}_output", **output}])
        for call in (custom, function)
    ]
    assert both[0] == both[1]
    calls = [
        {"type": "custom", "custom": {"name": "f", "input": "x"}},
        {"type": "function", "function": {"name": "f", "arguments": '{"input":"x"}'}},
    ]
    one, two = (
        chain_of({"messages": [{"role": "assistant", "tool_calls": [call]}]}, CHAT)
        for call in calls
    )
    assert one == two


def test_what_a_client_ran_for_another_model_counts_and_what_a_host_did_does_not() -> None:
    ran = [
        {"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "c", "output": "a"},
    ]
    arguments = json.dumps({"command": ["ls"]})
    called = {
        "type": "function_call",
        "call_id": "d",
        "name": "local_shell",
        "arguments": arguments,
    }
    result = {"type": "function_call_output", "call_id": "d", "output": "a"}
    assert chain(RESPONSES, input=[USER, *ran]) == chain(RESPONSES, input=[USER, called, result])
    hosted = chain(RESPONSES, input=[USER, {"type": "web_search_call"}, USER])
    assert hosted.hashes == chain(RESPONSES, input=[USER, USER]).hashes
    assert len(hosted.items) == 3


# --- tools that an item adds -----------------------------------------------------------------


def test_tools_that_the_first_item_adds_stand_where_the_body_s_own_do() -> None:
    added = chain(RESPONSES, input=[ADDING, USER])
    own = chain(RESPONSES, OWN[RESPONSES])
    assert added.hashes == own.hashes
    assert list(added.items) == [own.preamble, own.preamble + 1]
    spaced = json.dumps({"input": [{"id": None, **ADDING}, USER], "tools": []}, indent=2).encode()
    assert chain_of(spaced, RESPONSES).hashes == own.hashes
    unshown = chain(RESPONSES, input=[ADDING, USER], tool_choice="none")
    assert unshown.hashes == chain(RESPONSES).hashes


def test_other_tools_of_the_first_item_part_a_chain_from_its_begin() -> None:
    other = {**ADDING, "tools": [{**OWN[RESPONSES], "description": "Other."}]}
    both = [chain(RESPONSES, input=[first, USER]).hashes for first in (ADDING, other)]
    assert not set(both[0]) & set(both[1])


def test_a_first_item_that_is_spelled_in_an_unusual_order_leaves_no_chain() -> None:
    odd = {"tools": [], "role": "developer", "type": "additional_tools"}
    fields = read_fields(json.dumps({"input": [odd, USER]}).encode())
    assert PrefixHasher().chain(fields, RESPONSES, "m") is None


def test_tools_that_a_later_item_adds_count_where_they_stand() -> None:
    prefix_hasher = PrefixHasher()
    long = [{**USER, "content": f"{number} " * 900} for number in range(4)]
    before = chain_of({"input": long}, RESPONSES, prefix_hasher)
    after = chain_of({"input": [*long, ADDING, USER]}, RESPONSES, prefix_hasher)
    assert after.hashes[: len(before)] == before.hashes
    assert after.preamble == before.preamble
    assert after.hashes == chain_of({"input": [*long, ADDING, USER]}, RESPONSES).hashes
    other = {**ADDING, "tools": [{**OWN[RESPONSES], "description": "Other."}]}
    assert chain_of({"input": [*long, other, USER]}, RESPONSES).head != after.head
    nothing = chain_of({"input": [*long, {**ADDING, "tools": []}, USER]}, RESPONSES)
    assert nothing.hashes == chain_of({"input": [*long, USER]}, RESPONSES).hashes
    first = chain_of({"input": [ADDING, *long]}, RESPONSES, prefix_hasher)
    again = chain_of({"input": [ADDING, *long, ADDING, USER]}, RESPONSES, prefix_hasher)
    assert again.hashes[: len(first)] == first.hashes


def test_a_search_for_tools_is_no_function_of_that_name() -> None:
    schema = {"description": "D.", "parameters": {"type": "object"}}
    search = {"type": "tool_search", "execution": "client", **schema}
    function = {"type": "function", "name": "tool_search", **schema}
    assert chain(RESPONSES, search).hashes != chain(RESPONSES, function).hashes
    hosted = {**search, "execution": "server"}
    assert chain(RESPONSES, hosted) == chain(RESPONSES)
    found = {"type": "tool_search_output", "call_id": "c", "tools": [OWN[RESPONSES]]}
    none = {**found, "tools": []}
    made = [chain(RESPONSES, input=[USER, each]).head for each in (found, none, USER)]
    assert len(set(made)) == 3
    gone = chain(RESPONSES, input=[USER, {**found, "call_id": None}])
    assert gone.hashes == chain(RESPONSES).hashes
