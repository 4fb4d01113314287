from __future__ import annotations

import json
from typing import Any

import pytest

from node.protocol.chain.prefix import read_fields
from router.routing.output_limit import output_limit


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({}, None),
        ({"max_tokens": 10}, 10),
        ({"max_completion_tokens": 20, "max_tokens": 10}, 20),
        ({"max_output_tokens": 5, "n": 3}, 15),
        ({"max_tokens": 10, "n": 2, "best_of": 4, "prompt": ["a", "b"]}, 80),
        ({"max_tokens": "10"}, None),
        ({"max_tokens": 0}, None),
        ({"n": 3}, None),
        ({"options": {"num_predict": 7}}, 7),
        ({"options": 7, "max_tokens": 3}, 3),
        ({"max_tokens": 1e30}, 1_000_000_000),
    ],
)
def test_a_limit_counts_for_every_choice(body: dict[str, Any], limit: int | None) -> None:
    assert output_limit(read_fields(json.dumps(body).encode())) == limit


def test_another_limit_stands_in_where_the_body_sets_none() -> None:
    fields = read_fields(b'{"n": 3}')
    assert output_limit(fields, otherwise=100) == 300
