"""How far a command is, for who looks."""

from rich.progress import Progress, ProgressColumn

from serving.terminal.screen import Screen


def shown_bars(*columns: ProgressColumn) -> Progress:
    """Bars on standard error, where that is a terminal."""
    console = Screen(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
