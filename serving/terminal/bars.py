"""Progress bars of commands."""

from rich.progress import Progress, ProgressColumn

from serving.terminal.screen import Screen


def shown_bars(*columns: ProgressColumn) -> Progress:
    """Bars on standard error; disabled if that is no terminal."""
    console = Screen(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
