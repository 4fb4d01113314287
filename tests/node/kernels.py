"""The kernel of a Mac that is not there."""

from dataclasses import dataclass

from node.darwin import VirtualMemory


@dataclass
class PlayedKernel:
    """Reports what it is made with."""

    sysctls: dict[str, int | str]
    architecture: str = "arm64"
    memory: VirtualMemory | None = None
    swap: int | None = None

    def number(self, name: str) -> int | None:
        value = self.sysctls.get(name)
        return None if value is None else int(value)

    def text(self, name: str) -> str | None:
        value = self.sysctls.get(name)
        return None if value is None else str(value)

    def virtual_memory(self) -> VirtualMemory | None:
        return self.memory

    def swap_bytes(self) -> int | None:
        return self.swap
