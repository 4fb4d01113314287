"""`router config` and `router reload`."""

from collections.abc import Sequence

from router.api.admin.views import ChangeRow, ReloadRow
from router.commands import console
from router.commands.client import AdminClient, read_row
from router.commands.serve import check as check_settings
from router.errors import RouterError
from router.settings import ENVIRONMENT, settings_from
from serving.config_commands import ConfigCommands
from serving.errors import CannotStart
from serving.setting import Sections
from serving.setting_sources import Gathered, Sources

SECTIONS: Sections = (
    (
        "Where it listens",
        ("home", "host", "port", "allow_plain_http", "tls_cert", "tls_key", "discovery"),
    ),
    (
        "What it stores and logs",
        ("registry_url", "audit_entries", "log_requests")
        + ("log_level", "log_format", "log_file", "otel_endpoint"),
    ),
    ("The queue", ("queue_limit", "promote_after_s")),
    ("Patience", ("stream_keepalive_s", "stall_s", "load_timeout_s", "first_token_timeout_s")),
    ("The machine", ("stay_awake", "exit_on_stdin_eof")),
)
"""The settings in the order in which people read them."""


def init(sources: Sources, *, force: bool) -> None:
    ConfigCommands(ENVIRONMENT, SECTIONS, sources).init(force=force)


def show(sources: Sources, *, as_json: bool) -> bool:
    commands = ConfigCommands(ENVIRONMENT, SECTIONS, sources)
    return commands.show(sources.gather(), as_json=as_json)


def check(sources: Sources) -> bool:
    """Prints all mistakes; returns True if there is none."""
    gathered = sources.gather()
    more = [] if gathered.problems else _start_problems(gathered)
    return ConfigCommands(ENVIRONMENT, SECTIONS, sources).check(gathered, more)


def _start_problems(gathered: Gathered) -> list[str]:
    """Returns what would stop the start although each value is one."""
    try:
        check_settings(settings_from(gathered))
    except RouterError as error:
        return [error.message]
    except CannotStart as error:
        return [str(error)]
    return []


def reload(client: AdminClient, *, as_json: bool) -> None:
    response = client.post("/reload", {})
    if as_json:
        console.print_json(response)
        return
    row = read_row(ReloadRow, response)
    if not row.applied and not row.needs_restart:
        console.print_line("No setting has changed.")
    _print("Changed, from now on:", row.applied)
    _print("Changed in the configuration, but only a restart applies these:", row.needs_restart)


def _print(head: str, rows: Sequence[ChangeRow]) -> None:
    if rows:
        console.print_line(head)
    for each in rows:
        console.print_line(f"  {each.option}: {each.before} -> {each.after}")
