"""Calls between markers of their own, one or more in a section, whose markers may be missing."""

from node.parsing.format import ToolFormat
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step


class SectionCalls(ToolFormat):
    """Reads such calls. A subclass defines the markers and reads one call."""

    sections: tuple[str, ...] = ()
    section_ends: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    """Starts of a call."""

    def read_call(self, source: Source, begin: str) -> Step[None]:
        """Reads a call from behind its start, with its end, and emits it. Raises `Malformed`."""
        raise NotImplementedError

    def read(self, source: Source, opener: str) -> Step[None]:
        begin = opener
        if opener in self.sections:
            yield from source.space()
            begin = yield from source.expect(*self.calls)
        while begin:
            yield from self.read_call(source, begin)
            yield from source.space()
            begin = yield from source.accept(*self.calls)
        yield from source.accept(*self.section_ends)
