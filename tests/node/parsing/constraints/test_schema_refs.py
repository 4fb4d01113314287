"""References within a schema."""

from typing import Any

from node.parsing.constraints.schema_refs import at_pointer, is_exclusive

ROOT: dict[str, Any] = {
    "$defs": {"a/b": {"$anchor": "foo", "type": "null"}},
    "allOf": [{"type": "string"}],
}


def test_a_pointer_leads_to_what_it_names() -> None:
    assert at_pointer("#", ROOT) == ROOT
    assert at_pointer("#/$defs/a~1b", ROOT) == ROOT["$defs"]["a/b"]
    assert at_pointer("#/allOf/0", ROOT) == {"type": "string"}
    assert at_pointer("#/allOf/1", ROOT) is None


def test_a_name_of_an_anchor_is_no_pointer() -> None:
    assert at_pointer("#foo", ROOT) is None
    assert not is_exclusive([{"$ref": "#foo"}, {"type": "null"}], ROOT)
