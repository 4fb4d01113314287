"""Combines several formats: a block is read by the format whose opener it begins with."""

from collections.abc import Callable, Iterable, Sequence

from node.ipc.generate import ToolSchema
from node.parsing.constraints.lark import Lark
from node.parsing.format import ToolFormat
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step


class AnyOf(ToolFormat):
    """Reads blocks of any of its formats. If several formats share an opener, the first that can
    read the block does."""

    def __init__(
        self,
        name: str,
        formats: Sequence[ToolFormat],
        is_enabled: Callable[[str], bool] = bool,
    ) -> None:
        """`is_enabled` returns True for the openers and starts that are looked for."""
        self.name = name
        # Each format is kept once, or a block that none can read would be read several times.
        self._formats: tuple[ToolFormat, ...] = tuple(
            dict.fromkeys(each for form in formats for each in _parts(form))
        )
        self._first = formats[0]
        self.spells_bare = self._first.spells_bare
        self._readers: dict[str, list[ToolFormat]] = {}
        formats = self._formats
        for form in formats:
            for opener in filter(is_enabled, (*form.openers, *form.starts)):
                self._readers.setdefault(opener, []).append(form)
        self.starts = self._all(start for form in formats for start in form.starts)
        self.openers = self._all(opener for form in formats for opener in form.openers)
        ends = (each for form in formats for each in form.blank_ends)
        self.blank_ends = tuple(dict.fromkeys(ends))
        self.never_blank = tuple(each for form in formats for each in form.never_blank)
        self.orphans = tuple(dict.fromkeys(each for form in formats for each in form.orphans))
        self.stop_tokens = tuple(
            dict.fromkeys(each for form in formats for each in form.stop_tokens)
        )

    def read(self, source: Source, opener: str) -> Step[None]:
        readers = self._readers[opener]
        if len(readers) == 1:
            yield from readers[0].read(source, opener)
        else:
            yield from source.either(*(each.read(source, opener) for each in readers))

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        """Writes calls in the first format's spelling; the other formats are only read."""
        return self._first.calls_grammar(lark, tools, parallel=parallel)

    def _all(self, texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each for each in texts if each in self._readers))


def _parts(form: ToolFormat) -> tuple[ToolFormat, ...]:
    return form._formats if isinstance(form, AnyOf) else (form,)
