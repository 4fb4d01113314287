import msgspec

from node.engines.cache_events import cache_status
from node.ipc.messages import EngineStats, Loaded, MemoryLease
from node.protocol.messages import CacheStatus

INFO = Loaded(1, 1000, 4, 100, snapshot_only=True, stored_bytes_per_token=7, disk_bytes=500)
STATS = EngineStats(1, 0, 30, 10, 40, 0, 0, 2, 0, 0, 0, 0, 0)
LEASE = MemoryLease(1, 2, stored_kv_bytes=300)


def test_a_cache_is_reported_with_its_capacity_and_what_is_in_it() -> None:
    assert cache_status(LEASE, INFO, STATS) == CacheStatus(
        memory_bytes=300,
        memory_used_bytes=30,
        bytes_per_token=7,
        disk_bytes=500,
        disk_used_bytes=40,
        snapshot_only=True,
    )


def test_an_engine_that_has_not_reported_yet_stores_nothing() -> None:
    found = cache_status(LEASE, INFO, None)
    assert found is not None and found.memory_used_bytes == found.disk_used_bytes == 0


def test_where_nothing_is_kept_there_is_no_cache() -> None:
    bare = msgspec.structs.replace(INFO, disk_bytes=0)
    assert cache_status(MemoryLease(1, 2, 0), bare, STATS) is None
    assert cache_status(MemoryLease(1, 2, 0), INFO, STATS) is not None
