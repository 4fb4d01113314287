"""Calls of the formats of whole outputs as blocks within any text, for models whose format is
unknown."""

from node.parsing.calls.channels import Channel, Channels
from node.parsing.format import ToolFormat
from node.parsing.formats.command_r import COMMAND_R
from node.parsing.formats.functionary_v32 import FUNCTIONARY_V32
from node.parsing.formats.harmony import HARMONY
from node.parsing.formats.inkling import INKLING
from node.parsing.formats.kimi_k3 import KIMI_K3
from node.parsing.formats.muse import MUSE_BLOCK
from node.parsing.formats.solar import SOLAR
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step


class ChannelBlock(ToolFormat):
    """Reads a channel of calls with its header."""

    def __init__(self, layout: Channels, openers: tuple[str, ...]) -> None:
        """`openers` are the markers of the layout that begin a channel of calls."""
        self.name = layout.name
        self.openers = openers
        self._layout = layout

    def read(self, source: Source, opener: str) -> Step[None]:
        channel = Channel(opener)
        yield from self._layout.read_header(source, channel)
        if channel.target is None:
            raise Malformed
        yield from self._layout.read_calls(source, channel)
        yield from source.accept(*self._layout.ends)


WHOLE_BLOCKS: tuple[ToolFormat, ...] = (
    ChannelBlock(COMMAND_R, ("<|START_ACTION|>",)),
    ChannelBlock(FUNCTIONARY_V32, (">>>", "<|from|>", "<|recipient|>")),
    ChannelBlock(HARMONY, ("<|start|>", "<|channel|>")),
    ChannelBlock(INKLING, ("<|content_invoke_tool_json|>",)),
    ChannelBlock(KIMI_K3, ("<|open|>tools<|sep|>", "<|open|>call ")),
    MUSE_BLOCK,
    ChannelBlock(SOLAR, ("<|tool_calls|>", "<|tool_call:begin|>")),
)
