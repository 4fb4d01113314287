"""Processes of engines."""

from node.engines.link import EngineLink


def engine_pid(link: EngineLink) -> int:
    """Id of the engine's process, which may have ended."""
    assert link._process is not None
    return link._process.pid
