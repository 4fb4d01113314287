"""`router simulate`: plays a trace against several policies."""

import gzip
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.text import Text

from router.commands import console, wording
from router.commands.client import CommandFailed
from router.simulator.fleet import FleetError, NodeSpec, check_models, equal_fleet, read_fleet
from router.simulator.report import PolicyFigures
from router.simulator.table import BOUND, POLICIES, compare
from router.simulator.trace import Trace, TraceError, read_trace
from router.simulator.workload import LoadSpec, PlannedTrace, Workload

ALL = "all"
NODES = 4
"""Default number of nodes."""
GAP_S = 20.0
MAX_REQUESTS = 100_000
_COLUMNS = {
    "ttft_mean_s": ("TTFT mean", ".2f"),
    "ttft_p50_s": ("p50", ".2f"),
    "ttft_p99_s": ("p99", ".1f"),
    "longest_wait_s": ("Longest wait", ".1f"),
    "reprefilled_tokens": ("Tokens prefilled again", ",d"),
    "cached_share": ("Cached", ".1%"),
    "imbalance": ("Imbalance", ".2f"),
}


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The options of the command."""

    trace: Path
    fleet: Path | None
    nodes: int | None
    policy: str
    clones: int
    gap_s: float | None
    seed: int
    block_tokens: int | None


def run(options: SimulateOptions, *, as_json: bool, wide: bool = False) -> None:
    names = _policies(options.policy)
    specs = _specs(options)
    trace = _trace(options)
    if options.gap_s is not None and not trace.has_sessions and options.clones == 1:
        raise CommandFailed("--gap-s needs a trace with sessions, or --clones.")
    requests = len(trace.requests) * options.clones
    if requests > MAX_REQUESTS:
        raise CommandFailed(
            f"That is {wording.number(requests)} requests, and at most "
            f"{wording.number(MAX_REQUESTS)} are played; take a shorter trace or fewer --clones."
        )
    gap_s = GAP_S if options.gap_s is None else options.gap_s
    workload = PlannedTrace(trace).workload(LoadSpec(options.clones, gap_s, options.seed))
    try:
        check_models(specs, workload.models)
    except FleetError as error:
        raise CommandFailed(f"{options.fleet} does not suit {options.trace}: {error}") from error
    with console.progress(f"playing {wording.counted(workload.calls, 'request')}"):
        rows = compare(names, workload, specs, options.seed)
    if as_json:
        console.print_json({"policies": msgspec.to_builtins(rows)})
        return
    console.print_line(_fleet_line(specs, models=len(workload.models)))
    console.print_line(_load_line(workload, trace))
    print_rows(rows, wide=wide)


def _policies(policy: str) -> Sequence[str]:
    if policy == ALL:
        return list(POLICIES)
    if policy not in POLICIES:
        raise CommandFailed(f"--policy is {', '.join(POLICIES)} or {ALL}, not {policy!r}.")
    return [policy]


def _specs(options: SimulateOptions) -> tuple[NodeSpec, ...]:
    if options.fleet is None:
        return equal_fleet(options.nodes or NODES)
    if options.nodes is not None:
        raise CommandFailed("--fleet says how many nodes there are; leave --nodes out.")
    try:
        return read_fleet(options.fleet.read_text())
    except OSError as error:
        raise CommandFailed(f"{options.fleet} cannot be read: {error.strerror}.") from error
    except (FleetError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{options.fleet} is no fleet: {error}") from error


def _trace(options: SimulateOptions) -> Trace:
    try:
        with _opened(options.trace) as lines:
            return read_trace(lines, options.block_tokens)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CommandFailed(f"{options.trace} is incomplete, or not gzip: {error}.") from error
    except OSError as error:
        raise CommandFailed(f"{options.trace} cannot be read: {error.strerror}.") from error
    except TraceError as error:
        raise CommandFailed(f"{options.trace}: {error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[Iterable[bytes]]:
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as packed:
            yield packed
    else:
        with path.open("rb") as plain:
            yield plain


def _fleet_line(specs: Sequence[NodeSpec], *, models: int) -> str:
    kinds = Counter(
        f"{spec.prefill_tokens_per_s:g} tokens/s prefill, {spec.decode_tokens_per_s:g} decode, "
        f"cache of {wording.number(spec.cache_tokens)} tokens"
        + (f" and {wording.number(spec.disk_tokens)} on disk" if spec.disk_tokens else "")
        + (", snapshots only" if spec.snapshot_only else "")
        + (_models_words(spec) if models > 1 else "")
        for spec in specs
    )
    return "Fleet: " + "; ".join(f"{count} × {kind}" for kind, count in kinds.items())


def _models_words(spec: NodeSpec) -> str:
    each = " for each model" if spec.resident_models > 1 else ""
    return (
        f"{each}, {wording.counted(spec.resident_models, 'model')} in memory at once, "
        f"{spec.load_s:g} s to load one"
        + (
            f", {wording.counted(spec.disk_models, 'model')} on disk, "
            f"{spec.model_bytes / spec.lan_bytes_per_s:.0f} s to copy one"
            if spec.disk_models
            else ""
        )
    )


def _load_line(workload: Workload, trace: Trace) -> str:
    sessions = wording.counted(len(workload.scripts), "session")
    models = len(workload.models)
    return (
        f"Load: {wording.counted(workload.calls, 'request')}"
        + (f" in {sessions}" if trace.has_sessions else "")
        + (f" for {models} models" if models > 1 else "")
        + f", {wording.number(workload.distinct_tokens)} different prompt tokens"
    )


def print_rows(rows: Sequence[PolicyFigures], *, wide: bool = False) -> None:
    rivals = [row for row in rows if row.policy != BOUND]
    best = {field: _best(rivals, field) for field in _COLUMNS}
    cells = [
        [
            Text(row.policy),
            *(
                _cell(_shown(row, field), best=row in rivals and _shown(row, field) == best[field])
                for field in _COLUMNS
            ),
        ]
        for row in rows
    ]
    heads = ("Policy", *(f">{head}" for head, _ in _COLUMNS.values()))
    console.print_table(heads, cells, ("Imbalance", "Tokens prefilled again", "p50"), wide=wide)
    notes = [
        "* best" if any(best.values()) else "",
        f"{BOUND} knows the future" if len(rows) > len(rivals) else "",
    ]
    console.print_line("; ".join(["Times in seconds", *filter(None, notes)]) + ".")


def _shown(row: PolicyFigures, field: str) -> str:
    return format(getattr(row, field), _COLUMNS[field][1])


def _best(rows: Sequence[PolicyFigures], field: str) -> str | None:
    """Returns the best figure as it is shown; None if all are equal."""
    if len({_shown(row, field) for row in rows}) < 2:
        return None
    sign = -1 if field == "cached_share" else 1
    return _shown(min(rows, key=lambda row: sign * getattr(row, field)), field)


def _cell(text: str, *, best: bool) -> Text:
    return Text(f"{text} *" if best else f"{text}  ", style="bold green" if best else "")
