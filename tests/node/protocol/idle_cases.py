"""The table of cases of the idle rule, which the agent's and the router's tests both run."""

from typing import NamedTuple

from node.protocol.messages import ModelState, ModelStatus

KEEP_ALIVE_S = 60.0


class IdleCase(NamedTuple):
    name: str
    is_idle: bool
    idle_s: float | None = KEEP_ALIVE_S
    keep_alive_s: float | None = KEEP_ALIVE_S
    leases: int = 0
    pinned: bool = False
    state: ModelState = ModelState.READY

    def status(self) -> ModelStatus:
        return ModelStatus(
            "m",
            self.state,
            1,
            generation=3,
            leases=self.leases,
            idle_s=self.idle_s,
            pinned=self.pinned,
            keep_alive_s=self.keep_alive_s,
        )


CASES = (
    IdleCase("a model leaves once it has been idle for its keep-alive", is_idle=True),
    IdleCase("and later", is_idle=True, idle_s=1_000.0),
    IdleCase("not before", is_idle=False, idle_s=KEEP_ALIVE_S - 1.0),
    IdleCase("a model that is kept forever stays", is_idle=False, keep_alive_s=None),
    IdleCase("a pinned model stays", is_idle=False, pinned=True),
    IdleCase("a leased model stays", is_idle=False, leases=1),
    IdleCase("a model in use reports no idle time", is_idle=False, idle_s=None),
    IdleCase("a model that is loading stays", is_idle=False, state=ModelState.LOADING),
    IdleCase("one that is being unloaded is left alone", is_idle=False, state=ModelState.DRAINING),
    IdleCase("there is none to unload on disk", is_idle=False, state=ModelState.ON_DISK),
)
