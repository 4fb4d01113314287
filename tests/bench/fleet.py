"""`python -m tests.bench.fleet`: how well the router places requests, simulated and live.

It goes in parts, each in runs of less than ten minutes: without `--part` the next part that is not
done, item by item, until the time is up; started again it goes on where it stopped. `--report`
prints what there is.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import fleet_live, fleet_report, fleet_table, peers
from tests.bench.fleet_live import ALONE
from tests.bench.fleet_routers import OURS, PEERS
from tests.bench.parts import RUN_S, Command, Parts, Result
from tests.bench.peer_home import open_home
from tests.bench.peers import Bench
from tests.bench.shared import CACHE, SharedTools

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
    "table": 120.0,
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


def run(tools: SharedTools, smollm2: Path, part: str) -> None:
    bench = Bench(tools, open_home(smollm2), smollm2, time.monotonic() + RUN_S)
    measure = MEASURES[part]
    MEASURED.run(part, lambda item: measure(bench, item), lambda _: ITEM_S[part], bench.deadline_s)


if __name__ == "__main__":
    sys.exit(Command("tests.bench.fleet", __doc__, MEASURED, fleet_report.show, run).main())
