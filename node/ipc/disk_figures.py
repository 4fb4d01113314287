"""Counts of an engine's KV cache on disk."""

import msgspec


class DiskFigures(msgspec.Struct, frozen=True):
    """Reads and writes of a disk tier since its engine's start."""

    read_files: int = 0
    read_bytes: int = 0
    read_s: float = 0.0
    """Seconds of these reads, one at a time."""
    unreadable_files: int = 0
    """Files that were quarantined because they could not be read or were corrupt."""
    written_files: int = 0
    written_bytes: int = 0
    failed_writes: int = 0
    """Writes that the disk has refused; those that were no longer needed do not count."""
