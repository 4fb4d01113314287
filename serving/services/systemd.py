"""Unit files of systemd, and the output of `systemctl show`."""

from __future__ import annotations

from pathlib import Path

from serving.services.description import (
    OPEN_FILES,
    RESTART_S,
    InstalledService,
    Service,
    ServiceState,
    by_option,
)

SHOWN = ("LoadState", "MainPID", "ExecMainStatus", "ExecMainExitTimestampMonotonic")
"""The properties that `read_state` needs."""
_HOME, _LOG = "WorkingDirectory=", "StandardError=append:"


def unit_of(service: Service) -> str:
    """A unit of the user's own service manager. Each option has its line."""
    options = (" ".join(map(_quoted, line)) for line in by_option(service.arguments))
    command = " \\\n  ".join(options)
    return "\n".join(
        (
            "[Unit]",
            f"Description={service.program} of mlx-fleet",
            # A failure is started again for ever, as when its network or disk comes late.
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={command}",
            f"{_HOME}{_escaped(str(service.home))}",
            f'Environment="PATH={_in_quotes(service.path)}"',
            "Restart=on-failure",
            f"RestartSec={RESTART_S}",
            # Its children are ended by the program itself, and killed only after the time is over.
            "KillMode=mixed",
            f"TimeoutStopSec={service.stop_s}",
            # An engine that the kernel kills does not end the agent.
            "OOMPolicy=continue",
            f"LimitNOFILE={OPEN_FILES}",
            "UMask=0077",
            # The program's own log file, which it rotates.
            f"StandardOutput=append:{_escaped(str(service.log_file))}",
            f"{_LOG}{_escaped(str(service.log_file))}",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        )
    )


def _quoted(text: str) -> str:
    """An argument of a command, in quotes, of which systemd expands nothing."""
    return f'"{_in_quotes(text).replace("$", "$$")}"'


def _in_quotes(text: str) -> str:
    return _escaped(text).replace("\\", "\\\\").replace('"', '\\"')


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def lines_of(text: str) -> list[str]:
    """The lines of a unit for people."""
    return [each.strip().removesuffix("\\").strip() for each in text.splitlines()]


def read_unit(text: str) -> InstalledService:
    return InstalledService(_path_after(_HOME, text), _path_after(_LOG, text), None)


def _path_after(key: str, text: str) -> Path | None:
    found = (line.removeprefix(key) for line in text.splitlines() if line.startswith(key))
    return next((Path(each.replace("%%", "%")) for each in found), None)


def read_state(output: str) -> ServiceState:
    """The state in the output of `systemctl show` with the properties `SHOWN`."""
    fields = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    pid = _number(fields.get("MainPID"))
    has_ended = _number(fields.get("ExecMainExitTimestampMonotonic")) > 0
    return ServiceState(
        fields.get("LoadState") == "loaded",
        pid or None,
        _number(fields.get("ExecMainStatus")) if has_ended else None,
    )


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
