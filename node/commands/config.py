"""`node-agent config`."""

from node.commands.configuration import settings_from, start_problems
from node.settings import ENVIRONMENT
from serving.config_commands import ConfigCommands
from serving.setting import Sections
from serving.setting_sources import Sources

SECTIONS: Sections = (
    (
        "Serving",
        ("home", "host", "port", "announce", "models", "served_model_names")
        + ("responses_bytes", "stay_awake", "exit_on_stdin_eof", "engine", "script")
        + ("log_level", "log_format", "log_file", "otel_endpoint"),
    ),
    (
        "Memory and speed",
        ("memory_limit_bytes", "max_rows", "prefill_chunk_tokens", "decode_stall_target_ms")
        + ("kv_live_bytes", "kv_cache_bytes", "kv_snapshot_bytes", "kv_cache_bits")
        + ("kv_live_bits", "kv_disk_bytes", "kv_disk_bytes_per_day", "wired", "warm"),
    ),
    (
        "Models and swaps",
        ("min_residency_s", "max_swap_wait_s", "keep_alives", "pins", "stall_timeout_s")
        + ("spare_engine",),
    ),
    (
        "Output",
        ("tool_parsers", "reasoning_parsers", "default_chat_template_kwargs")
        + ("max_thinking_tokens", "repeated_tool_calls", "tool_stream", "reasoning_field"),
    ),
)
"""The settings in the order in which people read them."""


def init(sources: Sources, *, force: bool) -> None:
    ConfigCommands(ENVIRONMENT, SECTIONS, sources).init(force=force)


def show(sources: Sources, *, as_json: bool) -> bool:
    commands = ConfigCommands(ENVIRONMENT, SECTIONS, sources)
    return commands.show(sources.gather(), as_json=as_json)


def check(sources: Sources) -> bool:
    """Prints all mistakes; True if there is none."""
    gathered = sources.gather()
    more = [] if gathered.problems else start_problems(settings_from(gathered))
    return ConfigCommands(ENVIRONMENT, SECTIONS, sources).check(gathered, more)
