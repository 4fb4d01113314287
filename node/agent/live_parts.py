"""The parts of the agent that a reload of its settings changes."""

from dataclasses import dataclass

from node.agent.watchdog import Watchdog
from node.engines.residency_policy import ResidencyPolicy
from node.engines.supervisor import Supervisor
from node.settings import Settings
from serving.awake import Awake


@dataclass(frozen=True, slots=True)
class LiveParts:
    """Holders of settings that can change while the agent runs."""

    residency: ResidencyPolicy
    supervisor: Supervisor
    watchdog: Watchdog
    awake: Awake

    def follow(self, settings: Settings) -> None:
        """Gives them what has changed."""
        self.residency.set_own(settings)
        self.supervisor.on_residency_change()
        self.watchdog.stall_timeout_s = settings.stall_timeout_s
        self.awake.set_mode(settings.stay_awake)
