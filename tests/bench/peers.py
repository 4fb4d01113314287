"""`python -m tests.bench.peers`: other routers and servers, measured beside ours.

It goes in parts, each in runs of less than ten minutes: without `--part` the next part that is not
done, item by item, until the time is up; started again it goes on where it stopped. `--report`
prints what there is.
"""

import json
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tests.bench import peer_phases, peer_report, processes, replay
from tests.bench.machine import Cores
from tests.bench.parts import RUN_S, Command, Parts, Result
from tests.bench.peer_home import PeerHome, open_home
from tests.bench.peer_servers import NO_GC, OURS, SERVERS, serving
from tests.bench.shared import CACHE, SharedTools

TINY_ROUNDS, REPLAY_ROUNDS = 3, 2
_SETUP = (
    "system",
    "mlx_lm",
    "sglang_router",
    "vllm_router",
    "litellm",
    "llamacpp",
    "mlx_vlm",
    "vllm_mlx",
    "rapid_mlx",
    "mlx_openai",
)
PARTS: dict[str, tuple[str, ...]] = {
    "setup": _SETUP,
    "routers": ("direct", OURS, "sglang_router", "vllm_router", "litellm"),
    "servers-tiny": tuple(
        f"{server}.{number}"
        for number in range(1, TINY_ROUNDS + 1)
        for server in (*SERVERS[:4], NO_GC, *SERVERS[4:])
    ),
    "servers-real": tuple(f"{server}.{group}" for group in peer_phases.REAL for server in SERVERS),
    "replay": tuple(
        f"{server}.{number}" for number in range(1, REPLAY_ROUNDS + 1) for server in SERVERS
    ),
    "replay-16": tuple(f"{server}.1" for server in SERVERS),
}
"""Rounds go through all servers."""
MEASURED = Parts(CACHE / "peers", PARTS)
ITEM_S = {
    "setup": 200.0,
    "routers": 120.0,
    "servers-tiny": 120.0,
    "replay": 170.0,
    "replay-16": 170.0,
}
"""An item is begun only where this much of the run is left."""
REAL_ITEM_S = {"speed": 100.0, "long": 220.0, "sessions": 330.0}


@dataclass(frozen=True, slots=True)
class Bench:
    """The tools, paths and deadline that every item needs."""

    tools: SharedTools
    home: PeerHome
    smollm2: Path
    deadline_s: float

    def left_s(self) -> float:
        return self.deadline_s - time.monotonic()


def run(tools: SharedTools, smollm2: Path, part: str) -> None:
    bench = Bench(tools, open_home(smollm2), smollm2, time.monotonic() + RUN_S)
    measure = MEASURES[part]
    MEASURED.run(
        part,
        lambda item: measure(bench, part, item),
        lambda item: item_s(part, item),
        bench.deadline_s,
    )


def item_s(part: str, item: str) -> float:
    return ITEM_S[part] if part in ITEM_S else REAL_ITEM_S[item.partition(".")[2]]


# --- one item of each part ---


def set_up(bench: Bench, _part: str, item: str) -> list[Result]:
    """One peer installed, in its own environment under the home."""
    script = bench.tools.script("setup.sh")
    output = run_tool(bench, ["bash", str(script), item], f"setup-{item}")
    # The script's exit status also speaks of a GGUF model, which need not be there.
    if item != "system" and not bench.home.installed(item):
        raise processes.BenchFailure(f"not installed: {output[-600:]}")
    return [{"phase": "setup"}]


def route(bench: Bench, _part: str, item: str) -> list[Result]:
    policy = "simple-shuffle" if item == "litellm" else "round_robin"
    return routed(bench, item, ["--policy", policy])


def routed(bench: Bench, item: str, options: Sequence[str]) -> list[Result]:
    """One router, or none, under the shared bench_router.py. Raises `BenchFailure`."""
    if shutil.which("wrk") is None:
        raise processes.BenchFailure("wrk is not installed")
    bench.home.check(item, free=("direct", OURS))
    port, backends = processes.free_port(), two_free_ports()
    argv = [sys.executable, str(bench.tools.script("bench_router.py")), item]
    argv += ["--port", str(port), "--bport", str(backends), *options]
    if item == OURS:
        own = f"{shlex.quote(sys.executable)} -m tests.bench.open_router"
        argv += ["--custom", own + " --port {port} --backends {urls_csv}"]
    return json_lines(run_tool(bench, argv, f"router-{item}"))


def serve(bench: Bench, part: str, item: str) -> list[Result]:
    """One inference server with the tiny or the real model."""
    name, _, group = item.partition(".")
    if part == "servers-real":
        folder, effort = bench.smollm2, peer_phases.REAL[group]
    else:
        folder, effort = bench.tools.tiny_model(bench.smollm2), peer_phases.TINY
    began_s = time.monotonic()
    with serving(bench.tools, bench.home, name, folder) as server:
        lines = [{"phase": "start", "ready_s": round(time.monotonic() - began_s, 1)}]
        with ended_in_time(bench, server.process):
            lines += peer_phases.measure(server, effort)
    return lines


def replay_trace(bench: Bench, part: str, item: str) -> list[Result]:
    """One inference server with the tiny model and the agent's recorded requests, in the order of
    the trace or of 16 sessions in turn."""
    together = 1 if part == "replay" else replay.TOGETHER
    folder = bench.tools.tiny_model(bench.smollm2)
    requests = replay.load_requests(bench.tools, folder, replay.REQUESTS, together=together)
    name = item.partition(".")[0]
    with (
        serving(bench.tools, bench.home, name, folder) as server,
        ended_in_time(bench, server.process),
    ):
        run = replay.run_checked if name == OURS else replay.run
        found = run(server, requests)
    shares = {"share": found.share, "ideal_share": found.ideal_share}
    return [{"phase": "replay", **asdict(found), **shares}]


@contextmanager
def ended_in_time(bench: Bench, process: psutil.Process) -> Iterator[None]:
    """Kills the server where the time is up, so that all its requests fail."""

    def end() -> None:
        for each in processes.tree(process):
            each.kill()

    timer = threading.Timer(max(1.0, bench.left_s()), end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


MEASURES: dict[str, Callable[[Bench, str, str], list[Result]]] = {
    "setup": set_up,
    "routers": route,
    "servers-tiny": serve,
    "servers-real": serve,
    "replay": replay_trace,
    "replay-16": replay_trace,
}


def run_tool(
    bench: Bench, argv: list[str], name: str, environ: dict[str, str] | None = None
) -> str:
    """Runs one of the shared scripts to its end; what it printed.

    Raises `BenchFailure` where the time is up; whatever it has started is ended then too.
    """
    log = CACHE / "logs" / f"{name}.log"
    extra = {**bench.home.environ(), "OPENBLAS_NUM_THREADS": "1", **(environ or {})}
    with processes.running(argv, Cores(), log, extra) as process:
        try:
            process.wait(timeout=max(1.0, bench.left_s()))
        except psutil.TimeoutExpired:
            raise processes.BenchFailure(f"not done after {RUN_S:.0f} s") from None
    return log.read_text(errors="replace")


def json_lines(output: str) -> list[Result]:
    found = [json.loads(text) for text in output.splitlines() if text.startswith("{")]
    if len(found) < 2 or found[0].get("failed"):
        raise processes.BenchFailure(output[-600:].strip() or "it printed nothing")
    return found


def two_free_ports() -> int:
    """The lower of two neighboring ports that are free."""
    while True:
        port = processes.free_port()
        if processes.is_free(port + 1):
            return port


if __name__ == "__main__":
    sys.exit(Command("tests.bench.peers", __doc__, MEASURED, peer_report.show, run).main())
