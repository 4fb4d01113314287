"""`router upgrade-plan`: prints the steps of an upgrade."""

from collections.abc import Sequence

from router.api.admin.report_views import StatusRow
from router.commands import console, wording
from router.commands.client import AdminClient, CommandFailed, read_row
from router.commands.upgrade.plan import NodeStep, RouterStep, UpgradePlan, plan_of
from serving.installer import CLONE, UPGRADES
from serving.version import own_version

_ORDER = (
    "The router comes first, then one node after the other. Router and nodes talk as long as their "
    "protocols differ by one at most, so the others serve meanwhile."
)


def run(client: AdminClient, wanted: str | None, *, as_json: bool) -> None:
    status = read_row(StatusRow, client.get("/status"))
    # The package on this machine is the router's only if the router is here.
    installed = own_version() if client.access.is_local else status.version
    try:
        plan = plan_of(status, installed, wanted)
    except ValueError as error:
        raise CommandFailed(str(error)) from None
    if as_json:
        console.print_json(plan.as_json())
        return
    _print_table(plan, status)
    if not plan.router.commands and not plan.nodes:
        console.print_line(f"Router and nodes run {plan.version}: nothing to upgrade.")
        console.print_line("`router upgrade-plan --to VERSION` plans the way to another version.")
        return
    _print_steps(plan)


def _print_table(plan: UpgradePlan, status: StatusRow) -> None:
    router = plan.router
    rows = [("router", router.version, str(router.protocol), router.installed_by, _todo(router))]
    steps = {step.node: step for step in plan.nodes}
    for row in status.nodes:
        if (step := steps.get(row.name)) is not None or row.name in plan.done:
            rows.append(
                (
                    row.name,
                    row.version or "?",
                    "?" if row.protocol is None else str(row.protocol),
                    row.installed_by or "?",
                    _node_todo(step),
                )
            )
    console.print_table(("Part", "Runs", ">Protocol", "Installed by", "To do"), rows)


def _todo(router: RouterStep) -> str:
    return "upgrade" if router.commands else ""


def _node_todo(step: NodeStep | None) -> str:
    if step is None:
        return ""
    return "upgrade" if step.reachable else "reach it first"


def _print_steps(plan: UpgradePlan) -> None:
    console.print_line(f"To {plan.version}. {_ORDER}")
    first = 1
    if plan.router.commands:
        _print_step(
            f"{first}. The router. While it restarts, no client can connect; those that retry are "
            "served then.",
            plan.router.commands,
            plan.router.installed_by,
        )
        first += 1
    for number, step in enumerate(plan.nodes, first):
        text = f"{number}. {step.node}. {_meanwhile(step)}"
        _print_step(text, step.commands, step.installed_by)
    if len(plan.nodes) > 1:
        console.print_line("")
        console.print_line(
            "`router upgrade-nodes -- COMMAND` does this for all nodes, with a command that "
            "upgrades and restarts one, such as `ssh {host} 'SCRIPT'`."
        )


def _meanwhile(step: NodeStep) -> str:
    if not step.reachable:
        return f"It cannot be reached: {step.error or 'no status yet'}"
    if step.only_here:
        model = step.only_here[0]
        names = wording.join_some(step.only_here)
        return (
            f"No other node serves {names}: requests wait or fail meanwhile. `router models pull "
            f"{model} --node NODE` copies it to another one."
        )
    return "Other nodes serve its models meanwhile."


def _print_step(text: str, commands: Sequence[str], installed_by: str) -> None:
    console.print_line("")
    console.print_line(text)
    for command in commands:
        note = "  # in the clone" if installed_by == CLONE and UPGRADES[CLONE] in command else ""
        console.print_line(f"   {command}{note}")
