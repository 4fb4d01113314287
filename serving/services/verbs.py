"""`service install`, `uninstall` and `status` of a program, and their output."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from serving.errors import CannotStart
from serving.services.installation import (
    FoundService,
    found,
    install,
    last_lines,
    places_of,
    size_of,
    uninstall,
    uninstall_command,
    watch,
)
from serving.services.machine import ServiceMachine
from serving.services.program import ServedProgram, home_of, service_of
from serving.terminal.output import put, put_json
from serving.terminal.screen import Screen


@dataclass(frozen=True, slots=True)
class ServiceVerbs:
    """The verbs for one program on one machine. All may raise `CannotStart`."""

    program: ServedProgram
    machine: ServiceMachine

    def install(self, *, at_boot: bool, as_json: bool) -> bool:
        """Installs the service and shows it; False if it has failed since."""
        self._need_own_user(at_boot=at_boot)
        service = service_of(self.program, self.machine)
        places = places_of(service.program, service.home, self.machine, at_boot=at_boot)
        seen_bytes = size_of(service.log_file)
        changes = install(service, places, self.machine, _say)
        state = watch(places[0], self.machine, service.log_file, seen_bytes)
        here = FoundService(places[0], "", places[0].read(places[0].render(service)), state)
        row = self._row(here)
        if as_json:
            _print_json({**row, "changes": changes})
        else:
            _print_changes(places[0].file, changes)
            _print_row(row)
        if state.pid is None:
            self._tell_failure(service.log_file)
        return state.pid is not None

    def print_file(self, *, at_boot: bool) -> None:
        """Prints the file that `install` would write."""
        service = service_of(self.program, self.machine)
        place = places_of(service.program, service.home, self.machine, at_boot=at_boot)[0]
        put(f"# {place.file}", err=True)
        put(place.render(service), end="")

    def uninstall(self, *, as_json: bool) -> None:
        home = self._home()
        places = places_of(self.program.name, home, self.machine)
        command = uninstall_command(str(self.program.path), home)
        removed = uninstall(places, command, _say)
        if as_json:
            _print_json({"removed": [str(each) for each in removed], "left": str(home)})
            return
        for each in removed:
            put(f"Removed {each}.")
        if removed:
            put(
                f"Left as it is: {home}, with all that is in it. `{self.program.name} serve` and "
                "`service install` use it again."
            )
        else:
            put(f"There is no service of {self.program.name} for {home}; nothing is removed.")

    def status(self, *, as_json: bool) -> bool:
        """Shows the service; False if it does not run."""
        home = self._home()
        here = list(found(places_of(self.program.name, home, self.machine)))
        if not here:
            return self._no_service(home, as_json=as_json)
        # A daemon that has taken an agent's place runs, and the agent does not.
        best = max(here, key=lambda each: each.state.pid is not None)
        row = self._row(best)
        if as_json:
            _print_json(row)
        else:
            _print_row(row)
        return best.state.pid is not None

    def _home(self) -> Path:
        return home_of(self.program, self.program.sources.gather(), self.machine)

    def _need_own_user(self, *, at_boot: bool) -> None:
        is_daemon = self.machine.is_mac and at_boot
        if self.machine.is_root and self.machine.user.number != 0 and not is_daemon:
            raise CannotStart(
                f"Call this without sudo: it is a service of {self.machine.user.name}'s own."
            )

    def _no_service(self, home: Path, *, as_json: bool) -> bool:
        step = f"`{self.program.name} service install` makes one."
        if as_json:
            _print_json({"installed": False, "running": False, "home": str(home), "next": step})
        else:
            put(f"There is no service of {self.program.name} for {home}. {step}")
        return False

    def _row(self, here: FoundService) -> dict[str, Any]:
        facts, state = here.facts, here.state
        log_file = facts.log_file if facts else None
        return {
            "installed": True,
            "label": here.place.label,
            "kind": here.place.noun,
            "file": str(here.place.file),
            "home": str(facts.home) if facts and facts.home else None,
            "starts": here.place.starts(),
            "loaded": state.is_loaded,
            "running": state.pid is not None,
            "pid": state.pid,
            "last_exit": state.last_exit,
            "log_file": str(log_file) if log_file else None,
            "next": self._next(here, log_file),
        }

    def _next(self, here: FoundService, log_file: Path | None) -> str:
        name = self.program.name
        if here.facts is None:
            return f"The file is not ours: look at it, or `{name} service uninstall`."
        if here.state.pid is not None:
            return self.program.next_step
        if not here.state.is_loaded:
            return f"`{name} service install` starts it."
        if here.state.has_failed:
            return f"Its log says why: tail {log_file}."
        return f"It has ended without an error; `{name} service install` starts it."

    def _tell_failure(self, log_file: Path) -> None:
        lines = last_lines(log_file)
        put(f"The service does not run. The end of {log_file}:", err=True)
        for each in lines or ["(nothing)"]:
            put(f"  {each}", err=True)
        put("It is started again every 10 s until `service uninstall`.", err=True)


def _say(line: str) -> None:
    put(line, err=True)


def _print_json(value: Any) -> None:
    put_json(json.dumps(value, indent=2, ensure_ascii=False))


def _print_changes(file: Path, changes: list[str]) -> None:
    if changes:
        put(f"Changed in {file}:")
        for each in changes:
            put(f"  {each}")


def _print_row(row: dict[str, Any]) -> None:
    state = f"running (pid {row['pid']})" if row["running"] else "not running"
    if not row["loaded"]:
        state = "not running, and not known to the system"
    lines = {
        "service": f"{row['label']}, a {row['kind']}, starts {row['starts']}",
        "state": state,
        "last exit": None if row["last_exit"] is None else f"code {row['last_exit']}",
        "home": row["home"],
        "file": row["file"],
        "log": row["log_file"],
        "next": row["next"],
    }
    table = Table("", "", box=None, show_header=False, padding=(0, 2, 0, 0))
    table.columns[1].overflow = "fold"
    for name, text in lines.items():
        if text is not None:
            table.add_row(name, Text(text))
    Screen().print(table)
