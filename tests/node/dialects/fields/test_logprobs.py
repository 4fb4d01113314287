"""Log probabilities are serialized as in OpenAI's API, in both of its formats."""

from node.dialects.fields.logprobs import TextOffsets, token_logprobs
from node.ipc.messages import Alternative, TokenLogprob
from tests.node.dialects.openai_stream import token


def torn(data: bytes) -> TokenLogprob:
    return TokenLogprob(Alternative("\N{REPLACEMENT CHARACTER}", data, -1.0))


def test_each_token_has_its_bytes_and_the_likeliest() -> None:
    assert token_logprobs([token("é", -0.5, ("é", -0.5), ("e", -2.0)), token("", -1.0)]) == [
        {
            "token": "é",
            "logprob": -0.5,
            "bytes": [195, 169],
            "top_logprobs": [
                {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
                {"token": "e", "logprob": -2.0, "bytes": [101]},
            ],
        },
        {"token": "", "logprob": -1.0, "bytes": [], "top_logprobs": []},
    ]


def test_the_older_form_has_lists_side_by_side() -> None:
    lists = TextOffsets().lists([token("he", -0.5, ("ha", -0.1), ("he", -0.5)), token("y", -1.0)])
    assert lists == {
        "tokens": ["he", "y"],
        "token_logprobs": [-0.5, -1.0],
        "top_logprobs": [{"ha": -0.1, "he": -0.5}, {"y": -1.0}],
        "text_offset": [0, 2],
    }


def test_the_token_itself_is_returned_beside_the_likeliest_if_it_is_none_of_them() -> None:
    lists = TextOffsets().lists([token("x", -3.0, ("a", -0.1), ("b", -2.0))])
    assert lists["top_logprobs"] == [{"a": -0.1, "b": -2.0, "x": -3.0}]


def test_of_tokens_with_one_text_the_likeliest_is_returned() -> None:
    lists = TextOffsets().lists([token("x", -3.0, ("a", -0.1), ("a", -2.0))])
    assert lists["top_logprobs"] == [{"a": -0.1, "x": -3.0}]


def test_offsets_continue_and_count_whole_characters() -> None:
    offsets = TextOffsets()
    smile = "🙂".encode()
    first = offsets.lists([token("é", -1.0), torn(smile[:2])])
    then = offsets.lists([torn(smile[2:]), token("b", -1.0)])
    assert (first["text_offset"], then["text_offset"]) == ([0, 1], [1, 2])
