"""`python -m tests.bench.peers`: other routers and servers, measured beside ours.

It goes in parts, each in runs of less than ten minutes: without `--part` the next part that is not
done, item by item, until the time is up; started again it goes on where it stopped. `--report`
prints what there is.
"""

import argparse
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from node.engine.blas import load_fast_blas
from tests.bench import peer_ours, peer_report, processes
from tests.bench.machine import Cores, load_average
from tests.bench.peer_home import PeerHome, open_home
from tests.bench.shared import CACHE, SharedTools, find_tools, smollm2_folder

RESULTS = CACHE / "peers"
RUN_S = 570.0
ITEM_S = 200.0
"""An item is begun only where this much of the run is left."""
_OURS = "ours"
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
_SERVERS = (_OURS, "mlx_lm", "vllm_mlx", "rapid_mlx", "mlx_openai", "mlx_vlm", "llamacpp")
PARTS: dict[str, tuple[str, ...]] = {
    "setup": _SETUP,
    "routers": ("direct", _OURS, "sglang_router", "vllm_router", "litellm"),
    "servers-tiny": _SERVERS,
    "servers-real": _SERVERS,
}

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bench:
    """What every item needs."""

    tools: SharedTools
    home: PeerHome
    smollm2: Path
    deadline_s: float

    def left_s(self) -> float:
        return self.deadline_s - time.monotonic()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    parser.add_argument("--part", choices=tuple(PARTS), help="this part, not the next one")
    parser.add_argument("--again", action="store_true", help="forget the part's results first")
    parser.add_argument("--retry", action="store_true", help="forget the part's failures first")
    parser.add_argument("--report", action="store_true", help="print the tables and do nothing")
    given = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=170)
    if given.report:
        peer_report.show(console, read_results())
        return 0
    tools, smollm2 = find_tools(), smollm2_folder()
    if tools is None:
        return 0
    if smollm2 is None:
        print("Nothing measured: $MLX_FLEET_SMOLLM2 names no model folder.")
        return 0
    part = given.part or next_part()
    if part is None:
        peer_report.show(console, read_results())
        return 0
    forget(part, all_of_it=given.again, failures=given.retry)
    bench = Bench(tools, open_home(smollm2), smollm2, time.monotonic() + RUN_S)
    run_part(bench, part)
    return 0


def next_part() -> str | None:
    """The first part that is not done."""
    return next((part for part in PARTS if missing(part)), None)


def missing(part: str) -> list[str]:
    return [item for item in PARTS[part] if not result_file(part, item).exists()]


def result_file(part: str, item: str) -> Path:
    return RESULTS / f"{part}.{item}.json"


def forget(part: str, *, all_of_it: bool, failures: bool) -> None:
    for item, result in read_results()[part].items():
        if all_of_it or (failures and "failed" in result):
            result_file(part, item).unlink()


def read_results() -> dict[str, dict[str, Result]]:
    """Results by part and item, in the order of the parts."""
    return {
        part: {
            item: json.loads(result_file(part, item).read_text())
            for item in items
            if result_file(part, item).exists()
        }
        for part, items in PARTS.items()
    }


def run_part(bench: Bench, part: str) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    measure = MEASURES[part]
    for item in missing(part):
        if bench.left_s() < ITEM_S:
            break
        began_s, load_before = time.monotonic(), load_average()
        try:
            result: Result = {"lines": measure(bench, part, item)}
        except processes.BenchFailure as failure:
            result = {"failed": str(failure)}
        took_s = round(time.monotonic() - began_s, 1)
        result |= {"date": time.strftime("%Y-%m-%d %H:%M"), "took_s": took_s, "load": load_before}
        result_file(part, item).write_text(json.dumps(result, indent=1) + "\n")
        print(f"{part}: {item}: {result.get('failed') or 'done'} ({took_s} s)", flush=True)
    left = missing(part)
    following = next_part()
    if left:
        print(f"{part}: {', '.join(left)} still to do; run it again to go on.")
    elif following:
        print(f"{part} is done; next is {following}.")
    else:
        print("All parts are done; --report prints the tables.")


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
    if shutil.which("wrk") is None:
        raise processes.BenchFailure("wrk is not installed")
    bench.home.check(item, free=("direct", _OURS))
    port, backends = processes.free_port(), two_free_ports()
    argv = [sys.executable, str(bench.tools.script("bench_router.py")), item]
    argv += ["--port", str(port), "--bport", str(backends)]
    argv += ["--policy", "simple-shuffle" if item == "litellm" else "round_robin"]
    if item == _OURS:
        own = f"{shlex.quote(sys.executable)} -m tests.bench.open_router"
        argv += ["--custom", own + " --port {port} --backends {urls_csv}"]
    return json_lines(run_tool(bench, argv, f"router-{item}"))


def serve(bench: Bench, part: str, item: str) -> list[Result]:
    """One inference server with the tiny or the real model."""
    real = part == "servers-real"
    folder = bench.smollm2 if real else bench.tools.tiny_model(bench.smollm2)
    effort = peer_ours.REAL if real else peer_ours.TINY
    if item == _OURS:
        return peer_ours.measure(bench.tools, Cores(), folder, effort)
    bench.home.check(item)
    environ = {"APC_ENABLED": "1", "APC_DISK_ENABLED": "0"} if item == "mlx_vlm" else {}
    if item == "llamacpp":
        environ["GGUF"] = str(bench.home.gguf(tiny=not real))
    elif library := load_fast_blas():
        environ["LD_PRELOAD"] = library
    argv = [sys.executable, str(bench.tools.script("bench_server.py")), item]
    argv += [str(processes.free_port()), str(folder), *effort.argv()]
    if item == "mlx_lm":
        argv += ["--model-name", "default_model"]
    return json_lines(run_tool(bench, argv, f"{part}-{item}", environ))


MEASURES: dict[str, Callable[[Bench, str, str], list[Result]]] = {
    "setup": set_up,
    "routers": route,
    "servers-tiny": serve,
    "servers-real": serve,
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
    """The lower of two neighbouring ports that are free."""
    while True:
        port = processes.free_port()
        if processes.is_free(port + 1):
            return port


if __name__ == "__main__":
    sys.exit(main())
