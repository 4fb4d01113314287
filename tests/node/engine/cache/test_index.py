import pytest

from node.engine.cache.index import Node, RadixIndex
from node.engine.cache.parts import Tokens
from tests.node.engine.cache.fake_parts import FakeSnapshot, FakeSpan, capture_of, count, ids


def _add(index: RadixIndex, parent: Node, key: Tokens) -> Node:
    node = index.add(parent, key, now_s=0.0)
    index.attach_span(node, capture_of(key)(0, len(key)))
    return node


def test_an_empty_index_shares_nothing() -> None:
    walk = RadixIndex().walk(ids(1, 2))
    assert walk.path == [] and walk.shared == 0 and walk.diverging is None


def test_a_walk_ends_at_the_first_token_that_differs() -> None:
    index = RadixIndex()
    first = _add(index, index.root, count(1, 6))
    second = _add(index, first, count(6, 9))
    assert index.walk(count(1, 9)).path == [first, second]
    walk = index.walk(ids(1, 2, 3, 99, 5, 6))
    assert (walk.path, walk.shared, walk.diverging) == ([first], 3, first)
    walk = index.walk(ids(1, 2, 3, 4, 5, 99))
    assert (walk.path, walk.shared, walk.diverging) == ([first], 5, None)


def test_a_walk_may_end_with_the_prompt_inside_an_edge() -> None:
    index = RadixIndex()
    node = _add(index, index.root, count(1, 6))
    walk = index.walk(count(1, 4))
    assert (walk.path, walk.shared, walk.diverging) == ([node], 3, node)


def test_a_key_does_not_follow_its_caller_s_array() -> None:
    index = RadixIndex()
    tokens = count(1, 6)
    index.add(index.root, tokens, now_s=0.0)
    tokens[:] = 0
    assert index.walk(count(1, 6)).shared == 5


def test_a_split_keeps_number_children_and_snapshot_with_the_lower_part() -> None:
    index = RadixIndex()
    node = _add(index, index.root, count(1, 6))
    child = _add(index, node, count(6, 9))
    index.attach_snapshot(node, FakeSnapshot((1, 2, 3, 4, 5)))
    entry = node.entry
    upper = index.split(node, 2)
    assert (upper.begin, upper.end, node.begin, node.end) == (0, 2, 2, 5)
    assert node.entry == entry and node.parent is upper and child.parent is node
    assert upper.snapshot is None and node.snapshot is not None
    assert isinstance(upper.span, FakeSpan) and isinstance(node.span, FakeSpan)
    assert (upper.span.tokens, node.span.tokens) == (2, 3)
    assert index.walk(count(1, 9)).path == [upper, node, child]
    assert index.size == 3


def test_bytes_and_residents_follow_what_nodes_own() -> None:
    index = RadixIndex()
    node = _add(index, index.root, count(1, 6))
    child = _add(index, node, count(6, 9))
    index.attach_snapshot(child, FakeSnapshot((1,)))
    assert (index.span_bytes, index.snapshot_bytes, index.nbytes) == (80, 25, 105)
    assert (index.root.resident_below, node.resident_below) == (2, 1)
    index.detach_span(child)
    assert node.resident_below == 1
    index.detach_snapshot(child)
    assert (index.nbytes, node.resident_below) == (50, 0)
    assert list(index.resident) == [node]


def test_a_span_of_another_length_is_refused() -> None:
    index = RadixIndex()
    node = index.add(index.root, count(1, 6), now_s=0.0)
    with pytest.raises(ValueError, match="4 tokens for a key of 5"):
        index.attach_span(node, capture_of(count(1, 5))(0, 4))
    assert index.nbytes == 0 and not index.resident


def test_a_hold_covers_all_above_and_survives_a_split() -> None:
    index = RadixIndex()
    node = _add(index, index.root, count(1, 6))
    child = _add(index, node, count(6, 9))
    index.hold(child)
    upper = index.split(node, 2)
    assert upper.protected and node.protected and child.protected
    index.release(child)
    assert not (upper.protected or node.protected or child.protected)


def test_a_hold_ends_what_was_about_to_leave_memory() -> None:
    index = RadixIndex()
    node = _add(index, index.root, count(1, 6))
    index.set_leaving(node, span=True, snapshot=False)
    assert index.leaving_bytes == 50
    index.hold(node)
    assert index.leaving_bytes == 0


def test_numbers_are_not_used_again_after_a_reset() -> None:
    index = RadixIndex()
    first = _add(index, index.root, count(1, 6))
    index.reset()
    assert index.size == 0 and index.nbytes == 0
    assert _add(index, index.root, count(1, 6)).entry > first.entry
