"""Stand-ins for service managers, programs and machines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from serving.logs.options import LogFile
from serving.services.description import Service, User
from serving.services.machine import Ran, ServiceMachine
from serving.services.program import ServedProgram
from serving.setting import Environment, Setting
from serving.setting_kinds import FLAG, PATH, PORT, TEXT
from serving.setting_sources import Sources


@dataclass(frozen=True)
class Some:
    """Settings of a program."""

    home: Annotated[Path, Setting(PATH, "Home.")]
    port: Annotated[int, Setting(PORT, "Port.")] = 80
    store: Annotated[str, Setting(TEXT, "Store.", metavar="FILE")] = ""
    quick: Annotated[bool, Setting(FLAG, "Quick.", "--quick/--no-quick")] = True
    exit_on_stdin_eof: Annotated[bool, Setting(FLAG, "End.")] = False
    log_file: LogFile = None


PRODUCT = Environment(Some, "router", "MLX_FLEET_SOME_", "MLX_FLEET_OTHER_", ("config",))


def program_in(own: Path, variables: dict[str, str] | None = None, **options: Any) -> ServedProgram:
    sources = Sources(PRODUCT, options, variables or {}, own)
    return ServedProgram("router", sources, lambda: 30, "Look at it.")


def service_in(home: Path, *options: str, user: User | None = None) -> Service:
    return Service(
        "router",
        ("/bin/router", "serve", "--home", str(home), *options),
        home,
        home / "logs" / "router.log",
        "/usr/bin:/bin",
        user or User("anna", 501, home.parent),
        30,
    )


@dataclass
class Commands:
    """Runs no command, but keeps each and plays its part by the longest beginning that it has."""

    plays: dict[str, Callable[[Sequence[str]], Ran]] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    paused_s: float = 0.0

    def run(self, command: Sequence[str]) -> Ran:
        line = " ".join(command)
        self.ran.append(line)
        fitting = [begin for begin in self.plays if line.startswith(begin)]
        return self.plays[max(fitting, key=len)](command) if fitting else Ran(0, "")

    def pause(self, seconds: float) -> None:
        self.paused_s += seconds

    def machine(self, user: User, *, is_root: bool = False, is_mac: bool = False) -> ServiceMachine:
        return ServiceMachine(self.run, self.pause, user, is_root, is_mac)


@dataclass
class Launchd(Commands):
    """launchd, with the time that it takes to forget a service."""

    loaded: dict[str, int] = field(default_factory=dict)
    """By target, the pid; 0 for one that does not run."""
    ending: dict[str, int] = field(default_factory=dict)
    """By target, how often it is still shown after its end began."""
    exit_code: int | None = None
    """With which a service ends as soon as it is started."""
    most_looks: int = 2
    has_screen: bool = True

    def __post_init__(self) -> None:
        self.plays = {
            "launchctl print": self._print,
            "launchctl bootout": self._bootout,
            "launchctl bootstrap": self._bootstrap,
        }

    def _print(self, command: Sequence[str]) -> Ran:
        target = command[-1]
        if target.startswith("gui/") and target.count("/") == 1:
            return Ran(0, "") if self.has_screen else Ran(125, "Domain does not support it")
        if target in self.ending:
            self.ending[target] -= 1
            if self.ending[target] < 0:
                del self.ending[target]
            else:
                return Ran(0, f"{target} = {{\n\tstate = SIGTERMed\n}}")
        if target not in self.loaded:
            return Ran(113, "Could not find service")
        pid = f"\tpid = {self.loaded[target]}\n" if self.loaded[target] else ""
        ended = "(never exited)" if self.exit_code is None else f"{self.exit_code}: EX_CONFIG"
        return Ran(
            0,
            f"{target} = {{\n\tstate = running\n{pid}\tlast exit code = {ended}\n"
            "\tendpoints = {\n\t\tpid = 7\n\t}\n}",
        )

    def _bootout(self, command: Sequence[str]) -> Ran:
        self.loaded.pop(command[-1], None)
        self.ending[command[-1]] = self.most_looks
        return Ran(36, "Operation now in progress")

    def _bootstrap(self, command: Sequence[str]) -> Ran:
        target = f"{command[2]}/{Path(command[3]).stem}"
        if target in self.loaded or self.ending.get(target, -1) >= 0:
            return Ran(5, "Bootstrap failed: 5: Input/output error")
        self.loaded[target] = 0 if self.exit_code is not None else 4711
        return Ran(0, "")
