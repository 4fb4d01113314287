"""Many nodes in one process that report their prefixes: `python -m tests.bench.index_nodes NODES
ENTRIES`. Prints its port. A stream's bearer token is the id of the node that it is of.
"""

import asyncio
import os
import re
import sys

from node.protocol.messages import (
    HEARTBEAT_S,
    PROTOCOL_VERSION,
    NodeStatus,
    PrefixSnapshot,
    StatusEvent,
    encode_event,
)
from node.protocol.prefixes import MAX_ENTRIES, Entry, Tier, pack_entries

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n"
_POSITION_TOKENS = 214
_SESSION_POSITIONS = 700


def lines_of_a_node(entries: int) -> list[bytes]:
    parts = -(-entries // MAX_ENTRIES)
    lines = []
    for part in range(parts):
        begin = part * MAX_ENTRIES
        count = min(MAX_ENTRIES, entries - begin)
        hashes = memoryview(os.urandom(8 * count)).cast("Q")
        packed = pack_entries(
            Entry(
                each, _POSITION_TOKENS * (number % _SESSION_POSITIONS + 1), Tier(number // 64 % 2)
            )
            for number, each in enumerate(hashes, begin)
        )
        snapshot = PrefixSnapshot("model", 1, 0, part, parts, packed)
        lines.append(encode_event(snapshot) + b"\n")
    return lines


async def serve(nodes: int, entries: int) -> None:
    lines = [lines_of_a_node(entries) for _ in range(nodes)]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"bearer n(\d+)\r\n", head, re.IGNORECASE)
        assert found is not None
        number = int(found[1])
        status = NodeStatus(PROTOCOL_VERSION, f"n{number}", "i", "0", "scripted", "", 1, 0, ())
        heartbeat = encode_event(StatusEvent(status)) + b"\n"
        writer.write(_HEAD + heartbeat)
        for line in lines[number]:
            writer.write(line)
            await writer.drain()
        while not writer.is_closing():
            writer.write(heartbeat)
            await asyncio.sleep(HEARTBEAT_S)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
