"""Outputs of K2 Horizon."""

import pytest

from tests.node.parsing.reading import Calls, Parsed, read

CALLS: Calls = (("find", {"where": " x ", "depth": 2}), ("ping", {}))
PLAIN = (
    "<ifm|arg_key>where</ifm|arg_key>\n<ifm|arg_value> x </ifm|arg_value>\n"
    "<ifm|arg_key>depth</ifm|arg_key>\n<ifm|arg_value>2</ifm|arg_value>\n"
)
TYPED = PLAIN.replace("</ifm|arg_key>\n", "</ifm|arg_key>\n<ifm|arg_type>any</ifm|arg_type>\n")
JSON = '{"name": "find", "arguments": {"where": " x ", "depth": 2}}'
PING = "<ifm|tool_call>ping\n</ifm|tool_call>"


def k2(text: str, tail: str = "") -> Parsed:
    return read(text, reasoning="k2_horizon", tool_calls="k2_horizon", tail=tail)


@pytest.mark.parametrize("body", ["find\n" + PLAIN, "find" + TYPED, JSON, f"\n[{JSON}]\n"])
def test_calls_of_each_kind_are_read(body: str) -> None:
    call = f"<ifm|tool_call>{body}</ifm|tool_call>\n"
    assert k2(f"<ifm|tool_calls>\n{call}{PING}\n</ifm|tool_calls>") == Parsed(calls=CALLS)
    assert k2(f"I look.\n{call}{PING}") == Parsed("I look.", "", CALLS)


@pytest.mark.parametrize("effort", ["think", "think_fast", "think_faster"])
def test_each_effort_has_a_tag(effort: str) -> None:
    text = f"Hm.</ifm|{effort}>\nSo."
    assert k2(text, tail=f"<ifm|{effort}>") == k2(f"<ifm|{effort}>{text}") == Parsed("So.", "Hm.")


@pytest.mark.parametrize(
    "body", ["unknown\n</ifm|tool_call>", "find\n" + PLAIN, '{"name": "unknown"}</ifm|tool_call>']
)
def test_what_is_no_call_stays_text(body: str) -> None:
    text = f"<ifm|tool_call>{body}".rstrip()
    assert k2(text) == Parsed(text)
