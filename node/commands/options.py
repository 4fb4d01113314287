"""The options of `node-agent serve` that size an engine; each is a setting of `node.settings`."""

from typing import Annotated, Any

import typer

from node.settings import read_bytes, read_disk_bytes, read_warm


def _size(name: str, help_text: str) -> Any:
    return typer.Option(name, help=help_text, metavar="SIZE", parser=read_bytes)


MemoryLimit = Annotated[
    int | None, _size("--memory-limit", "Most memory for all models, such as 12GB.")
]
MaxRows = Annotated[int | None, typer.Option(help="Requests decoded together, per model.")]
PrefillChunk = Annotated[
    int | None,
    typer.Option("--prefill-chunk", help="Most of one prompt in one step.", metavar="TOKENS"),
]
DecodeStallTarget = Annotated[
    int | None, typer.Option(help="Longest wait of running answers for a new prompt.", metavar="MS")
]
KvCacheSize = Annotated[
    int | None, _size("--kv-cache-size", "Most stored KV in memory, per model.")
]
KvCacheBits = Annotated[
    int | None, typer.Option(help="Quantise stored KV to 4 or 8 bits.", metavar="4|8")
]
KvLiveBits = Annotated[
    int | None, typer.Option(help="Quantise the KV of running answers.", metavar="4|8")
]
KvDiskSize = Annotated[
    int | None,
    typer.Option(
        "--kv-disk-size",
        help="Most stored KV on disk, per model.",
        metavar="SIZE|off|auto",
        parser=read_disk_bytes,
    ),
]
KvDiskWrites = Annotated[
    int | None,
    _size("--kv-disk-writes-per-day", "Most KV written to disk in a day; 0: no limit."),
]
Warm = Annotated[
    list[Any] | None,
    typer.Option(
        help="Prompts to prefill at each load of the model; repeatable.",
        metavar="MODEL=FILE",
        parser=read_warm,
    ),
]
