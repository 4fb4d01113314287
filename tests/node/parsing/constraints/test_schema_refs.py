"""References within a schema."""

from typing import Any

from node.parsing.constraints.schema_refs import is_exclusive, pointed

ROOT: dict[str, Any] = {
    "$defs": {"a/b": {"$anchor": "foo", "type": "null"}},
    "allOf": [{"type": "string"}],
}


def test_a_pointer_leads_to_what_it_names() -> None:
    assert pointed("#", ROOT) == ROOT
    assert pointed("#/$defs/a~1b", ROOT) == ROOT["$defs"]["a/b"]
    assert pointed("#/allOf/0", ROOT) == {"type": "string"}
    assert pointed("#/allOf/1", ROOT) is None


def test_a_name_of_an_anchor_is_no_pointer() -> None:
    assert pointed("#foo", ROOT) is None
    assert not is_exclusive([{"$ref": "#foo"}, {"type": "null"}], ROOT)
