"""Settings files are changed without losing what else is in them."""

import json
import tomllib
from typing import Any

import pytest
from ruamel.yaml import YAML

from router.commands.connect.documents import Form, NotReadable, find, merged

TOML = """\
# of mine
model = "gpt"  # large
sandbox = 'x'

[model_providers.other]
name = "other"   # theirs

[tools]
web = true
"""
YAML_TEXT = """\
# of mine
name: mine
models:
  # the first
  - name: other
    apiKey: "k"   # quoted
  - name: fleet
    model: old
    note: kept
rules: [a, b]
"""
JSON_TEXT = """\
{
    "theme": "dark",
    "env": {"A": "1"},
    "list": [1, 2]
}
"""


def test_toml_keeps_its_comments_and_its_other_tables() -> None:
    values = {"model": "m", "window": 5, "model_providers": {"fleet": {"name": "f"}}}
    text = merged("toml", TOML, values)
    assert tomllib.loads(text) == {
        "model": "m",
        "window": 5,
        "sandbox": "x",
        "model_providers": {"other": {"name": "other"}, "fleet": {"name": "f"}},
        "tools": {"web": True},
    }
    for kept in ("# of mine", "# large", "'x'", "# theirs"):
        assert kept in text


def test_yaml_keeps_its_comments_and_finds_an_element_by_its_name() -> None:
    values = {"models": [{"name": "fleet", "model": "new", "roles": ["chat", "edit"]}]}
    text = merged("yaml", YAML_TEXT, values, "name")
    assert text == YAML_TEXT.replace("model: old", "model: new").replace(
        "note: kept", "note: kept\n    roles: [chat, edit]"
    )
    added = merged("yaml", YAML_TEXT, {"models": [{"name": "new"}]}, "name")
    assert [each["name"] for each in YAML().load(added)["models"]] == ["other", "fleet", "new"]


def test_yaml_lists_keep_their_indentation() -> None:
    flat = "models:\n- name: other\n  x: 1\n"
    assert merged("yaml", flat, {"models": [{"name": "new"}]}, "name") == f"{flat}- name: new\n"
    top = merged("yaml", "- id: a\n", [{"id": "b"}], "id")
    assert top == "- id: a\n- id: b\n"


def test_json_keeps_its_order_and_indentation() -> None:
    text = merged("json", JSON_TEXT, {"env": {"B": "2"}})
    assert list(json.loads(text)) == ["theme", "env", "list"]
    assert json.loads(text)["env"] == {"A": "1", "B": "2"}
    assert '\n    "theme"' in text
    assert merged("json", "", {"a": 1}) == '{\n  "a": 1\n}\n'


def test_variables_keep_their_lines() -> None:
    text = "# mine\nA=1\nexport KEY=old\n"
    assert merged("env", text, {"KEY": "new", "B": "2"}) == "# mine\nA=1\nKEY=new\nB=2\n"
    assert merged("env", 'KEY="same"\n', {"KEY": "same"}) == 'KEY="same"\n'


CASES: list[tuple[Form, str, Any, str]] = [
    ("toml", TOML, {"a": {"b": "KEY"}}, ""),
    ("yaml", YAML_TEXT, {"models": [{"name": "fleet", "apiKey": "KEY"}]}, "name"),
    ("json", JSON_TEXT, {"env": {"T": "KEY"}}, ""),
    ("env", "A=1\n", {"T": "KEY"}, ""),
]


@pytest.mark.parametrize(("form", "text", "values", "identity"), CASES, ids=[c[0] for c in CASES])
def test_a_second_merge_changes_nothing_and_a_value_is_found_again(
    form: Form, text: str, values: Any, identity: str
) -> None:
    once = merged(form, text, values, identity)
    assert once != text
    assert merged(form, once, values, identity) == once
    assert find(form, once.replace("KEY", "mlxf-1"), values, "KEY", identity) == "mlxf-1"
    assert find(form, text, values, "KEY", identity) is None


def test_values_that_may_differ_are_only_added() -> None:
    text = merged("json", '{"a": 1}', {"a": 2, "b": 3}, replace=False)
    assert json.loads(text) == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("json", '{"a": 1, // why\n}'),
        ("json", "[]"),
        ("json", "[" * 100_000),
        ("toml", "a = "),
        ("toml", "a = 1\na = 2\n"),
        ("yaml", "a: [1"),
        ("yaml", "a: 1\na: 2\n"),
        ("yaml", "- a\n"),
        ("yaml", "!!python/object:os.system {}\n: ]"),
    ],
)
def test_a_text_that_is_broken_is_left_alone(form: Form, text: str) -> None:
    with pytest.raises(NotReadable):
        merged(form, text, {"b": 1})


def test_a_list_is_not_put_into_a_table() -> None:
    with pytest.raises(NotReadable, match="no list"):
        merged("yaml", "a: 1\n", [{"id": "b"}], "id")
