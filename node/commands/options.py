"""The options of `node-agent serve` and `doctor` that are settings of `node.settings`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from node.errors import StartError
from node.settings import (
    WIRED,
    read_bytes,
    read_disk_bytes,
    read_duration_s,
    read_flag,
    read_keep_alive,
    read_kwargs,
    read_parser,
    read_thinking_tokens,
    read_warm,
)
from serving.stay_awake import STAY_AWAKE, StayAwake


def _named(name: str, read: Callable[[str], Any]) -> Callable[[str], Any]:
    """The reader, whose `StartError` names the option."""

    def parse(text: str) -> Any:
        try:
            return read(text)
        except StartError as exc:
            raise StartError(f"{name}: {exc.message}") from None

    return parse


def _size(name: str, help_text: str) -> Any:
    return typer.Option(name, help=help_text, metavar="SIZE", parser=_named(name, read_bytes))


def _per_model(name: str, help_text: str, what: str, read: Callable[[str], Any]) -> Any:
    """A repeatable option of a value for all models, or one for a model."""
    return typer.Option(
        name,
        help=f"{help_text} Repeatable.",
        metavar=f"{what}|MODEL={what}",
        parser=_named(name, read),
    )


Home = Annotated[
    Path | None, typer.Option(help="Folder of the agent: token, node id, models.", metavar="FOLDER")
]
Host = Annotated[str | None, typer.Option(help="Address to bind; default 127.0.0.1.")]
Port = Annotated[int | None, typer.Option(help="Port to bind, default 8801; 0 takes a free one.")]
Engine = Annotated[str | None, typer.Option(help="text or scripted; default text.")]
AllowPlainHttp = Annotated[
    bool | None, typer.Option("--allow-plain-http", help="Bind beyond loopback without TLS.")
]
Models = Annotated[
    list[Path] | None, typer.Option("--model", help="A model folder to serve too; repeatable.")
]
ServedModelNames = Annotated[
    list[str] | None,
    typer.Option("--served-model-name", help="A name for each --model; default: its folder's."),
]
MemoryLimit = Annotated[
    int | None,
    _size(
        "--memory-limit",
        "Most memory for all models, such as 12GB; default: auto, what the machine has, less a "
        "reserve.",
    ),
]
MaxRows = Annotated[
    int | None, typer.Option(help="Requests decoded together, per model; default: auto, up to 16.")
]
PrefillChunk = Annotated[
    int | None,
    typer.Option(
        "--prefill-chunk",
        help="Most of one prompt in one step; default: auto, up to 2048.",
        metavar="TOKENS",
    ),
]
DecodeStallTarget = Annotated[
    int | None,
    typer.Option(
        help="Longest wait of running answers for a new prompt; default: auto, 200.", metavar="MS"
    ),
]
KvLiveSize = Annotated[
    int | None, _size("--kv-live-size", "Most KV of running answers, per model; default: auto.")
]
KvCacheSize = Annotated[
    int | None,
    _size("--kv-cache-size", "Most stored KV in memory, per model; default: auto, what is left."),
]
KvSnapshotSize = Annotated[
    int | None,
    _size("--kv-snapshot-size", "Most of it that snapshots may take; default: auto, half."),
]
KvCacheBits = Annotated[
    int | None, typer.Option(help="Quantise stored KV to 4 or 8 bits; default: off.", metavar="4|8")
]
KvLiveBits = Annotated[
    int | None,
    typer.Option(help="Quantise the KV of running answers; default: off.", metavar="4|8"),
]
KvDiskSize = Annotated[
    int | None,
    typer.Option(
        "--kv-disk-size",
        help="Most stored KV on disk, per model; default: auto, up to 50 GiB.",
        metavar="SIZE|off|auto",
        parser=_named("--kv-disk-size", read_disk_bytes),
    ),
]
KvDiskWrites = Annotated[
    int | None,
    _size(
        "--kv-disk-writes-per-day",
        "Most KV written to disk in a day, per model; 0: no limit; default: auto, 50 GiB.",
    ),
]
ToolParsers = Annotated[
    list[Any] | None,
    _per_model(
        "--tool-parser",
        "Format of tool calls, or none; default: what the template tells.",
        "NAME",
        read_parser,
    ),
]
ReasoningParsers = Annotated[
    list[Any] | None,
    _per_model(
        "--reasoning-parser",
        "Format of reasoning, or none; default: what the template tells.",
        "NAME",
        read_parser,
    ),
]
DefaultTemplateKwargs = Annotated[
    list[Any] | None,
    _per_model(
        "--default-chat-template-kwargs",
        "Variables of the chat template, where a request has none of its own.",
        "JSON",
        read_kwargs,
    ),
]
MaxThinkingTokens = Annotated[
    list[Any] | None,
    _per_model(
        "--max-thinking-tokens",
        "Most tokens of reasoning, where a request does not say; default: no limit.",
        "N",
        read_thinking_tokens,
    ),
]
RepeatedToolCalls = Annotated[
    bool | None,
    typer.Option(
        "--repeated-tool-calls", help="Tell a call again that an answer makes twice; default: not."
    ),
]
ToolStream = Annotated[
    Any,
    typer.Option(
        "--tool-stream",
        help="Whether the arguments of a tool call are streamed as the model writes them, or the "
        "call is told once it is whole; default on.",
        metavar="on|off",
        parser=lambda text: read_flag("--tool-stream", text),
    ),
]
MinResidency = Annotated[
    float | None,
    typer.Option(
        "--min-residency",
        metavar="TIME",
        parser=_named("--min-residency", read_duration_s),
        help="So long a model that is loaded stays before it gives way to another; default 30s.",
    ),
]
MaxSwapWait = Annotated[
    float | None,
    typer.Option(
        "--max-swap-wait",
        metavar="TIME",
        parser=_named("--max-swap-wait", read_duration_s),
        help="After so long a request goes first whose model waits for another one's to leave; "
        "default 2m.",
    ),
]
KeepAlive = Annotated[
    list[Any] | None,
    _per_model(
        "--keep-alive",
        "How long a model may be idle before it is unloaded, or forever; default 1h.",
        "TIME",
        read_keep_alive,
    ),
]
Pins = Annotated[
    list[str] | None,
    typer.Option("--pin", metavar="MODEL", help="Load at the start, and never unload. Repeatable."),
]
StallTimeout = Annotated[
    float | None,
    typer.Option(
        "--stall-timeout",
        metavar="TIME",
        parser=_named("--stall-timeout", read_duration_s),
        help="An engine that has requests and makes no progress for so long is killed; default 2m.",
    ),
]
SpareEngine = Annotated[
    bool | None,
    typer.Option(
        "--spare-engine/--no-spare-engine",
        help="Keep an engine process ready for the next load, which then takes seconds less; "
        "default: yes.",
    ),
]
StayAwakeWhen = Annotated[
    StayAwake | None,
    typer.Option(
        "--stay-awake",
        help="When this Mac is kept from sleeping; default busy: while requests, loads or pulls "
        "are open, and a minute longer.",
        metavar=STAY_AWAKE,
    ),
]
WiredMemory = Annotated[
    str | None,
    typer.Option(
        "--wired",
        help="What of an engine's memory macOS is to keep wired for the GPU; Macs have been "
        "reported to panic with it; default off.",
        metavar="|".join(WIRED),
    ),
]
ReasoningFieldName = Annotated[
    str | None,
    typer.Option(
        "--reasoning-field",
        help="Where a chat's answer has its reasoning; default reasoning_content.",
        metavar="reasoning_content|reasoning|both",
    ),
]
ResponsesSize = Annotated[
    int | None,
    _size("--responses-size", "Most that stored responses may take on disk; default 512 MiB."),
]
Warm = Annotated[
    list[Any] | None,
    typer.Option(
        help="Prompts to prefill at each load of the model; repeatable.",
        metavar="MODEL=FILE",
        parser=_named("--warm", read_warm),
    ),
]

Full = Annotated[
    bool,
    typer.Option("--full", help="Try it out as well, for about five minutes, and write a report."),
]
Soak = Annotated[
    float | None,
    typer.Option(
        "--soak",
        metavar="MINUTES",
        min=0.01,
        max=1440,
        help="With --full: the load under which Macs have panicked, at the end. Save your work "
        "first.",
    ),
]
ReportFolder = Annotated[
    Path, typer.Option("--report", metavar="FOLDER", help="Where --full writes its report.")
]
