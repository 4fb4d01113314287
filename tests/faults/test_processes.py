"""The bytes of an answer, from a node's process through a router's."""

from __future__ import annotations

import hashlib

from tests.faults.rig import Fleet, until


async def test_what_arrives_is_what_the_node_wrote(shared: Fleet) -> None:
    for name in shared.agents:
        shared.forget(name)
    for streams in (True, False):
        status, body = await shared.answer("swift", stream=streams, max_tokens=9)
        assert status == 200
        record = await until(lambda: shared.records("swift")[-1])
        assert hashlib.sha256(body).hexdigest() == record["response_sha256"]
