"""Python calls in an output: Llama 4, LFM2, Olmo 3."""

import pytest

from node.parsing.calls import python_blocks
from node.parsing.calls.python_calls import PythonCall, read_calls
from tests.node.parsing.reading import Calls, Parsed, output_format, parsed, read

MARKED = [
    ("pythonic", "<|python_start|>[", "]<|python_end|>"),
    ("lfm2", "<|tool_call_start|>[", "]<|tool_call_end|>"),
    ("olmo3", "<function_calls>", "</function_calls>"),
]
BARE = ["pythonic", "lfm2"]
FIND = ("find", {"where": "/a", "depth": 2})


@pytest.mark.parametrize(("name", "begin", "end"), MARKED)
def test_reads_calls_between_markers(name: str, begin: str, end: str) -> None:
    text = f"So. {begin}find(where='/a', depth=2), ping(){end} Well."
    assert read(text, tool_calls=name) == Parsed("So.  Well.", "", (FIND, ("ping", {})))


@pytest.mark.parametrize(("name", "begin", "end"), MARKED)
def test_the_end_marker_may_be_missing_or_stand_within_a_string(
    name: str, begin: str, end: str
) -> None:
    bracket = end[: end.index("<")]
    assert read(f"{begin}ping(){bracket}", tool_calls=name).calls == (("ping", {}),)
    text = f"{begin}find(where='a {end} b'){end}"
    assert read(text, tool_calls=name).calls == (("find", {"where": f"a {end} b"}),)


@pytest.mark.parametrize(("name", "begin", "end"), MARKED)
@pytest.mark.parametrize("body", ["open(a=1)", "find('/a')", "find(where='/a'", "find", "a tag"])
def test_what_is_no_call_stays_text(name: str, begin: str, end: str, body: str) -> None:
    for text in (f"{begin}{body}{end}", f"{begin}{body}", f"x {begin} y"):
        assert read(text, tool_calls=name) == Parsed(text)


@pytest.mark.parametrize("name", BARE)
def test_a_bare_list_is_calls_where_the_answer_begins(name: str) -> None:
    found = read("\n[find(where='/a]'), ping()]\n[find(depth=2)] Done.", tool_calls=name)
    calls: Calls = (("find", {"where": "/a]"}), ("ping", {}), ("find", {"depth": 2}))
    assert found == Parsed("Done.", "", calls)
    found = read("<think>r</think>[ping()]", reasoning="think", tool_calls=name)
    assert found == Parsed("", "r", (("ping", {}),))


@pytest.mark.parametrize("name", BARE)
@pytest.mark.parametrize(
    "text",
    [
        "PythonCall [ping()] now.",
        "[see(note)] is prose",
        "[ping](url) is a link",
        "[1, 2]",
        "[ping(",
        "[find(where='/a', depth=2)",
        "[find('/a')]",
        "[x] done, [ ] open",
    ],
)
def test_other_text_in_brackets_is_text(name: str, text: str) -> None:
    assert read(text, tool_calls=name) == Parsed(text)


@pytest.mark.parametrize(("name", "begin", "end"), MARKED)
@pytest.mark.parametrize("calls", ["ping(), open()", "open(), ping()"])
def test_a_list_with_a_tool_that_nobody_declared_is_text(
    name: str, begin: str, end: str, calls: str
) -> None:
    for text in (f"{begin}{calls}{end}", *([f"[{calls}]"] if name in BARE else [])):
        assert read(text, tool_calls=name) == Parsed(text)


@pytest.mark.parametrize("calls", ["ping(), open()", "open(), ping()"])
def test_so_it_is_in_brackets_and_behind_the_python_tag(calls: str) -> None:
    for name, text in (
        ("bracket", f"[Calling tool: {calls}]"),
        ("llama3_json", f"<|python_tag|>[{calls}]"),
    ):
        assert read(text, tool_calls=name) == Parsed(text)


def test_many_end_markers_in_a_string_are_no_reason_to_read_it_as_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths: list[int] = []

    def counted(text: str) -> list[PythonCall]:
        lengths.append(len(text))
        return read_calls(text)

    monkeypatch.setattr(python_blocks, "read_calls", counted)
    text = '<|tool_call_start|>[find(where="' + "<|tool_call_end|>" * 3500
    form = output_format(tool_calls="lfm2")
    assert parsed(form, (text[at : at + 64] for at in range(0, len(text), 64))) == Parsed(text)
    assert sum(lengths) < 3 * len(text)


@pytest.mark.parametrize("name", BARE)
def test_the_end_of_a_list_is_found_in_one_pass(name: str) -> None:
    text = "[find(names=[" + "'a'," * 3000 + "]), ping()]"
    assert [each[0] for each in read_once(text, name).calls] == ["find", "ping"]
    text = "[find(filter=" + "{" * 20000
    assert read_once(text, name) == Parsed(text)


def read_once(text: str, name: str) -> Parsed:
    return parsed(output_format(tool_calls=name), (text,))


def test_a_bare_list_may_contain_quotes_that_were_not_escaped() -> None:
    found = read("[find(where='echo 'a' 'b'')]", tool_calls="lfm2")
    assert found.calls == (("find", {"where": "echo 'a' 'b'"}),)


def test_calls_between_the_markers_may_be_json() -> None:
    text = '<|tool_call_start|>[{"name": "ping", "arguments": {}}]<|tool_call_end|>'
    assert read(text, tool_calls="lfm2") == Parsed("", "", (("ping", {}),))


def test_strings_become_what_the_schema_wants() -> None:
    text = "[find(where=7, depth='2', exact='true', names='[\"x\"]')]"
    arguments = {"where": 7, "depth": 2, "exact": True, "names": ["x"]}
    assert read(text, tool_calls="pythonic").calls == (("find", arguments),)


def test_a_reasoning_model_of_olmo_may_write_the_tag_that_its_prompt_lacks() -> None:
    assert read("<think>r</think>a", reasoning="olmo3") == Parsed("a", "r")
    assert read("r</think>a", reasoning="olmo3") == Parsed("a", "r")
