"""The comments that fill the silence of streams."""

from node.protocol.comments import loading, waiting_for


def test_a_load_is_reported_with_its_progress_where_that_is_known() -> None:
    assert loading("m", 0.424) == b": loading m 42 %\n\n"
    assert loading("m", 0.0) == b": loading m 0 %\n\n"
    assert loading("m", None) == b": loading m\n\n"


def test_a_name_with_line_breaks_stays_within_its_comment() -> None:
    for comment in (loading("a\n\ndata: x", 0.5), waiting_for("a\n\ndata: x", "why")):
        assert comment.count(b"\n") == 2 and comment.endswith(b"\n\n")


def test_what_a_model_waits_for_is_reported() -> None:
    assert waiting_for("m", "another model is in use") == (
        b": waiting for m, another model is in use\n\n"
    )
