"""Finds the longest prefix of a prompt that the cache can restore."""

from dataclasses import dataclass

from node.engine.cache.index import File, Node, Walk


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """The reusable prefix of a prompt. Valid until the cache changes, or until `release` if it is
    held."""

    tokens: int
    """Tokens usable now, from memory."""
    disk_tokens: int
    """Tokens usable after a promotion; at least `tokens`."""
    disk_bytes: int
    """Bytes to read for `disk_tokens`."""
    node: Node
    """Node in which `tokens` end."""
    disk_node: Node
    """Node in which `disk_tokens` end."""


def longest_hit(walk: Walk, root: Node, *, needs_snapshot: bool) -> Hit:
    """Returns the longest usable prefix of a matched prompt. `needs_snapshot` means that the model
    can continue only at a snapshot."""
    node = disk_node = root
    hit_tokens = disk_tokens = disk_bytes = 0
    files: dict[File, int] = {}
    for each in walk.path:
        if each.span is None:
            if each.file is None or not each.on_disk:
                break
            files[each.file] = each.file.nbytes
        end = min(each.end, walk.shared)
        snapshot_bytes = _snapshot_bytes_to_read(each, end) if needs_snapshot else 0
        if snapshot_bytes is None:
            continue
        disk_node, disk_tokens = each, end
        disk_bytes = sum(files.values()) + snapshot_bytes
        if disk_bytes == 0 and not files:
            node, hit_tokens = each, end
    return Hit(hit_tokens, disk_tokens, disk_bytes, node, disk_node)


def _snapshot_bytes_to_read(node: Node, end: int) -> int | None:
    """Returns the bytes to read to continue after `end` tokens, inside or at the end of the node;
    None if that is impossible."""
    if end < node.end:
        return None
    if node.snapshot is not None:
        return 0
    file = node.snapshot_file
    return file.nbytes if file is not None and file.written else None
