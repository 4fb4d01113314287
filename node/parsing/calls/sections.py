"""Calls between markers of their own, one or more in a section, whose markers may be missing."""

from node.parsing.format import ToolFormat
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step


class SectionCalls(ToolFormat):
    """Such calls. A format says what its markers are, and reads one call."""

    sections: tuple[str, ...] = ()
    section_ends: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    """What a call begins with."""

    def read_call(self, source: Source, begin: str) -> Step[None]:
        """Reads on behind the begin of a call, its end included, and tells it. Raises
        `Malformed`."""
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
