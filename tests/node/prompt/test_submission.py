"""The request for the engine."""

import pytest

from node.errors import BadRequest
from node.ipc.generate import Constraint, ConstraintKind, SamplingParams
from node.ipc.messages import Loaded
from node.parsing.selection import Formats
from node.prompt.prompt import Prompt
from node.prompt.submission import generate_request
from node.request import TextRequest
from tests.node.prompt.words import completion

INFO = Loaded(0, 100, 1, vocab_size=10)


def test_a_sequence_takes_over_the_settings_of_the_request() -> None:
    sampling = SamplingParams(top_k=5, logit_bias=((9, 1.0),))
    request = completion((1, 2), max_tokens=3, stops=("x",), sampling=sampling)
    row = generate_request(request, "u", Prompt((1, 2, 3), (1, 2), 2, (3,)), INFO)
    assert (row.uid, row.tokens, row.max_tokens, row.stops) == ("u", (1, 2, 3), 3, ("x",))
    assert (row.boundaries, row.reusable_tokens, row.warm) == ((1, 2), 2, False)
    assert row.dropped_output == (3,)
    assert row.sampling == request.sampling
    unlimited = completion((1,), sampling=SamplingParams(top_k=10))
    plain = generate_request(unlimited, "u", Prompt((1,)), INFO)
    assert plain.sampling.top_k == 0


@pytest.mark.parametrize("kind", ConstraintKind)
def test_only_an_answer_that_is_constrained_to_json_is_parsed_as_such(kind: ConstraintKind) -> None:
    prompt = Prompt((1,), formats=Formats("think", "hermes"))
    constrained = completion((1,), constraint=Constraint(kind, "response_format"))
    output = generate_request(constrained, "u", prompt, INFO).output
    assert output is not None
    assert output.is_json is (kind in (ConstraintKind.JSON_OBJECT, ConstraintKind.JSON_SCHEMA))
    free = generate_request(completion((1,)), "u", prompt, INFO).output
    assert free is not None
    assert not free.is_json


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (completion((10,)), "prompt"),
        (completion((1,), sampling=SamplingParams(logit_bias=((10, 1.0),))), "logit_bias"),
    ],
)
def test_tokens_beyond_the_vocabulary_are_refused(request_: TextRequest, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        generate_request(request_, "u", Prompt((1,)), INFO)
    assert caught.value.param == param
