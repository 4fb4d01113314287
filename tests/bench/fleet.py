"""`python -m tests.bench.fleet`: how well the router places requests, simulated and live.

It goes in parts, each in runs of less than ten minutes: without `--part` the next part that is not
done, item by item, until the time is up; started again it goes on where it stopped. `--report`
prints what there is.
"""

import argparse
import sys
import time
from collections.abc import Callable

from rich.console import Console

from tests.bench import fleet_live, fleet_report, fleet_table, peers
from tests.bench.fleet_live import ALONE
from tests.bench.fleet_routers import OURS, PEERS
from tests.bench.parts import RUN_S, Parts, Result
from tests.bench.peer_home import open_home
from tests.bench.peers import Bench
from tests.bench.shared import CACHE, find_tools, smollm2_folder

ROUNDS = 3
TRACES = "data/traces"
"""Where the shared folder has them."""
_NUMBERS = tuple(str(number) for number in range(1, ROUNDS + 1))
MEASURED = Parts(
    CACHE / "fleet",
    {
        "setup": ("system", *PEERS),
        "table": fleet_table.ITEMS,
        "fake-sessions": (OURS, *PEERS),
        "sessions-tiny": _NUMBERS,
        "sessions-smollm2": ("1",),
        "beside-routers": tuple(
            f"{name}.{number}" for number in _NUMBERS for name in (ALONE, OURS, *PEERS)
        ),
    },
)
ITEM_S = {
    "setup": 120.0,
    "table": 300.0,
    "fake-sessions": 60.0,
    "sessions-tiny": 180.0,
    "sessions-smollm2": 300.0,
    "beside-routers": 180.0,
}
"""An item is begun only where this much of the run is left."""
MEASURES: dict[str, Callable[[Bench, str], list[Result]]] = {
    "setup": lambda bench, item: peers.set_up(bench, "setup", item),
    "table": lambda bench, item: fleet_table.measure(bench.tools.folder.parent / TRACES, item),
    "fake-sessions": fleet_live.fake_sessions,
    "sessions-tiny": fleet_live.sessions_tiny,
    "sessions-smollm2": fleet_live.sessions_real,
    "beside-routers": fleet_live.beside_routers,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fleet", description=__doc__)
    parts = tuple(MEASURED.items)
    parser.add_argument("--part", choices=parts, help="this part, not the next one")
    parser.add_argument("--again", action="store_true", help="forget the part's results first")
    parser.add_argument("--retry", action="store_true", help="forget the part's failures first")
    parser.add_argument("--report", action="store_true", help="print the tables and do nothing")
    given = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=170)
    if given.report:
        fleet_report.show(console, MEASURED.read())
        return 0
    tools, smollm2 = find_tools(), smollm2_folder()
    if tools is None:
        return 0
    if smollm2 is None:
        print("Nothing measured: $MLX_FLEET_SMOLLM2 names no model folder.")
        return 0
    part = given.part or MEASURED.next()
    if part is None:
        fleet_report.show(console, MEASURED.read())
        return 0
    MEASURED.forget(part, all_of_it=given.again, failures=given.retry)
    bench = Bench(tools, open_home(smollm2), smollm2, time.monotonic() + RUN_S)
    measure = MEASURES[part]
    MEASURED.run(part, lambda item: measure(bench, item), lambda _: ITEM_S[part], bench.deadline_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
