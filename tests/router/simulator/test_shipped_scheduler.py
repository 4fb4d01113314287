"""Tests the simulator's reports of its nodes to the scheduler."""

from __future__ import annotations

import math
import random

from router.simulator.fleet import NodeSpec
from router.simulator.node import Node
from router.simulator.shipped_scheduler import STORED_BYTES_PER_TOKEN, ShippedScheduler
from tests.router.simulator.building import job


def test_a_node_reports_the_models_on_its_disk_and_what_is_in_their_caches() -> None:
    spec = NodeSpec(cache_slots=3, disk_models=1, model_bytes=10**9, resident_models=2)
    node = Node(1, spec, ("a", "b"))
    ours = ShippedScheduler([node], random.Random(1))
    (move,) = ours.on_arrival(job(1, (1, 2), output=10, model="b"), 0.0)
    node.submit(move.job, 0.0)
    now_s = 0.0
    while node.next_s() < math.inf:
        now_s = node.next_s()
        for each in node.advance(now_s):
            ours.on_event(each, now_s)
    (view,) = ours._moment(now_s).fleet
    assert view.status is not None
    (model,) = view.status.models
    assert (model.name, model.weight_bytes, model.active_requests) == ("b", 10**9, 0)
    assert view.status.memory_leased_bytes == 10**9
    assert model.cache is not None
    assert (model.cache.slots, model.cache.slots_used) == (3, 1)
    assert model.cache.memory_used_bytes == 200 * STORED_BYTES_PER_TOKEN
