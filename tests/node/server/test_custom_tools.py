"""A session with custom tools and tool search, as Codex sends it, at a running agent."""

import json
from pathlib import Path
from typing import Any

from node.engine.scripted.script import Script
from tests.node.serving import RunningAgent, running

PATCH = '*** Begin Patch\n*** Add File: a.txt\n+"hello"\n*** End Patch'
GRAMMAR = 'start: "*** Begin Patch\\n" line+ "*** End Patch"\nline: /.+/ LF\n%import common.LF'
APPLY = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
}
SEARCH = {"type": "tool_search", "execution": "client"}
ADDING = {"type": "additional_tools", "role": "developer", "tools": [APPLY, SEARCH]}
FOUND = {"type": "namespace", "name": "mail", "tools": [{"type": "function", "name": "send"}]}
HERMES: dict[str, Any] = {"tool_parsers": (("scripted", "hermes"),)}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def ask(agent: RunningAgent, items: list[Any], *, stream: bool) -> list[Any]:
    """Returns the output of a response, which is all that clients keep of it."""
    body = {"model": "scripted", "input": items, "tools": [], "store": False, "stream": stream}
    answer = await agent.client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    if not stream:
        return list(answer.json()["output"])
    last = answer.text.rstrip().rpartition("data: ")[2]
    return list(json.loads(last)["response"]["output"])


async def test_a_session_of_codex_goes_on_with_the_items_it_received(tmp_path: Path) -> None:
    script = Script(
        outputs=(
            "I patch." + call("apply_patch", input=PATCH),
            call("tool_search", query="mail"),
            call("mail__send", to="me"),
            "Done.",
        )
    )
    async with running(tmp_path, script, **HERMES) as agent:
        items: list[Any] = [ADDING, {"type": "message", "role": "user", "content": "Go."}]
        text, patch = await ask(agent, items, stream=True)
        assert text["content"][0]["text"] == "I patch."
        assert (patch["type"], patch["name"]) == ("custom_tool_call", "apply_patch")
        assert patch["input"] == PATCH
        done = {
            "type": "custom_tool_call_output",
            "call_id": patch["call_id"],
            "output": "Success.",
        }
        items += [text, patch, done]
        (search,) = await ask(agent, items, stream=False)
        assert search["type"] == "tool_search_call"
        assert search["arguments"] == {"query": "mail"}
        found = {
            "type": "tool_search_output",
            "call_id": search["call_id"],
            "execution": "client",
            "status": "completed",
            "tools": [FOUND],
        }
        items += [search, found]
        (sent,) = await ask(agent, items, stream=True)
        assert (sent["type"], sent["namespace"], sent["name"]) == ("function_call", "mail", "send")
        items += [
            sent,
            {"type": "function_call_output", "call_id": sent["call_id"], "output": "ok"},
        ]
        (last,) = await ask(agent, items, stream=False)
        assert last["content"][0]["text"] == "Done."


async def test_a_chat_of_custom_tools(tmp_path: Path) -> None:
    tool = {"type": "custom", "custom": {"name": "exec", "description": "Runs code."}}
    async with running(tmp_path, Script(outputs=(call("exec", input="1 + 1"),)), **HERMES) as agent:
        body = {
            "model": "scripted",
            "messages": [{"role": "user", "content": "Go."}],
            "tools": [tool],
        }
        answer = (await agent.client.post("/v1/chat/completions", json=body)).json()
        (tool_call,) = answer["choices"][0]["message"]["tool_calls"]
        assert tool_call["custom"] == {"name": "exec", "input": "1 + 1"}
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        result = {"role": "tool", "tool_call_id": tool_call["id"], "content": "2"}
        messages = [*body["messages"], {"role": "assistant", "tool_calls": [tool_call]}, result]
        again = await agent.client.post("/v1/chat/completions", json={**body, "messages": messages})
        assert again.status_code == 200
