"""Headers that name what was left out of a request."""

from node.request import LeftOut
from node.server.left_out import MOST_NAMED, left_out_headers, sentence

SEARCH = LeftOut("tools[8]", "web_search", "search")


def test_no_headers_where_nothing_was_left_out() -> None:
    assert left_out_headers(()) == []


def test_the_paths_are_listed_and_named_in_a_warning() -> None:
    headers = dict(left_out_headers([SEARCH, LeftOut("input[3]", "mcp_call")]))
    assert headers == {
        b"x-fleet-ignored": b"tools[8],input[3]",
        b"warning": b'299 mlx-fleet "Left out, since only a host could run it: '
        b'tools[8] (web_search), input[3] (mcp_call)"',
    }


def test_a_header_has_a_bound_and_no_invalid_character() -> None:
    many = [LeftOut(f"tools[{at}]", 'a"\\\r\n\x00é🙂' + "b" * 500) for at in range(1000)]
    ((_, names), (_, warning)) = left_out_headers(many)
    assert names.decode().split(",")[-2:] == [f"tools[{MOST_NAMED - 1}]", "..."]
    assert len(warning) < 2000
    assert warning.isascii()
    assert warning.decode().isprintable()
    assert warning.count(b'"') == 2
    assert sentence(many[:1]) == (
        f"Left out, since only a host could run it: tools[0] (a{'b' * 63})"
    )
