from __future__ import annotations

from registry import models
from registry.db import Registry
from registry.records import ModelRecord
from tests.registry.rows import model_names


async def test_a_model_seen_again_keeps_its_first_time(registry: Registry) -> None:
    first = await registry.write(lambda s: models.seen(s, "qwen", None, 2**40, 1.0))
    assert first == ModelRecord("qwen", None, 2**40, 1.0, 1.0)
    again = await registry.write(lambda s: models.seen(s, "qwen", 8_192, 2**41, 2.0))
    assert again == ModelRecord("qwen", 8_192, 2**41, 1.0, 2.0)


async def test_what_a_node_does_not_know_leaves_what_was_known(registry: Registry) -> None:
    await registry.write(lambda s: models.seen(s, "qwen", 8_192, 7, 1.0))
    again = await registry.write(lambda s: models.seen(s, "qwen", None, None, 2.0))
    assert again == ModelRecord("qwen", 8_192, 7, 1.0, 2.0)


async def test_models_are_listed_by_name(registry: Registry) -> None:
    await registry.write(lambda s: models.seen(s, "qwen", None, None, 1.0))
    await registry.write(lambda s: models.seen(s, "llama", None, None, 2.0))
    async with registry.read() as session:
        assert await model_names(session) == ["llama", "qwen"]
