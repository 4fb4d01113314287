"""Tables and progress bars on a terminal, drawn by `rich`, with text of any source."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from serving.terminal.output import shown_lines


class Screen(Console):
    """A console that prints no escape sequences but its own. It does not interpret markup."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(shown_lines(segment.text), segment.style)
