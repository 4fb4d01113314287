"""`router service …`: arguments only."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from router.settings import Settings, sources
from serving.services.cli import service_group

if TYPE_CHECKING:
    from serving.services.program import ServedProgram

_NEXT = "`router doctor` checks that it reaches its nodes."


def add_to(app: typer.Typer) -> None:
    app.add_typer(service_group(Settings, _program), name="service")


def _program(given: Mapping[str, Any]) -> "ServedProgram":
    from serving.services.program import ServedProgram

    read = sources(given)

    def check() -> int:
        from router.commands.home.service import checked_stop_s

        return checked_stop_s(read)

    return ServedProgram("router", read, check, _NEXT)
