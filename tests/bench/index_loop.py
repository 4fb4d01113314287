"""The router's watcher and index alone, as after a restart: `python -m tests.bench.index_loop PORT
NODES ENTRIES`. Prints what it took as JSON."""

import asyncio
import gc
import json
import sys
import time
from array import array

import psutil
import uvloop

from node.protocol.chain.prefix import Chain
from node.protocol.messages import PrefixDelta
from node.protocol.prefixes import Entry, Tier, pack_entries
from registry.records import NodeRecord
from router.fleet.fleet import Fleet
from router.fleet.prefix_index import PrefixIndex
from router.fleet.watcher import Watcher
from router.records.ledger import Ledger
from router.upstream.credentials import NodeCredential
from router.upstream.origins import Origins

POSITIONS = 600
LOOKUPS = 2000
_LIMIT_S = 60.0
_PROBE_S = 0.001


async def rebuild(url: str, nodes: int, entries: int, index: PrefixIndex) -> dict[str, float]:
    """Follows nodes until all that they have cached is known."""
    watcher = Watcher(Fleet(), Ledger(Origins("bench", b"")), index)
    gc.collect()
    process = psutil.Process()
    before_bytes, before_s = process.memory_info().rss, time.process_time()
    began_s = last_s = time.perf_counter()
    stall_s = 0.0
    for number in range(nodes):
        name = f"n{number}"
        credential = NodeCredential(name).text()
        watcher.start(NodeRecord(name, name, url, "agent", credential, created_at_s=0.0))
    async with asyncio.timeout(_LIMIT_S):
        while sum(index.entries_by_node().values()) < nodes * entries:
            await asyncio.sleep(_PROBE_S)
            now_s = time.perf_counter()
            stall_s, last_s = max(stall_s, now_s - last_s - _PROBE_S), now_s
    took = {
        "work_s": time.process_time() - before_s,
        "wall_s": time.perf_counter() - began_s,
        "stall_s": stall_s,
    }
    gc.collect()
    took["grown_bytes"] = process.memory_info().rss - before_bytes
    await watcher.close()
    return took


def lookups(nodes: int, index: PrefixIndex) -> list[float]:
    """Seconds for the coverage of one long prompt by all nodes, each of which has another share."""
    hashes = array("Q", range(1, POSITIONS + 1))
    chain = Chain(hashes, array("I", range(1024, 1024 * (POSITIONS + 1), 1024)), array("I"), 0)
    for number in range(nodes):
        depth = POSITIONS * (number + 1) // nodes
        cached = [
            Entry(each, 200 * each, Tier.DISK if each > depth // 2 else Tier.MEMORY)
            for each in hashes[:depth]
        ]
        index.on_delta(f"n{number}", PrefixDelta("model", 1, 1, pack_entries(cached), b""))
    taken_s = []
    for _ in range(LOOKUPS):
        began_s = time.perf_counter()
        for number in range(nodes):
            index.coverage(f"n{number}", chain)
        taken_s.append(time.perf_counter() - began_s)
    assert index.coverage(f"n{nodes - 1}", chain).positions == POSITIONS
    return taken_s


def main() -> None:
    port, nodes, entries = (int(text) for text in sys.argv[1:])
    index = PrefixIndex()
    took = uvloop.run(rebuild(f"http://127.0.0.1:{port}", nodes, entries, index))
    print(json.dumps({**took, "lookup_s": lookups(nodes, index)}))


if __name__ == "__main__":
    main()
