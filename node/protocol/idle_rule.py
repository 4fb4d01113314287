"""The idle rule: which model is unloaded because it has not been used for its keep-alive. Pure.

A router applies it to its nodes. An agent to which no router is connected applies it itself.
"""

from node.protocol.messages import ModelState, ModelStatus


def is_idle_too_long(model: ModelStatus, status_age_s: float = 0.0) -> bool:
    """Returns True if the model has been idle for its keep-alive, `status_age_s` after this
    status."""
    if model.state is not ModelState.READY or model.leases or model.pinned:
        return False
    if model.idle_s is None or model.keep_alive_s is None:
        return False
    return model.idle_s + status_age_s >= model.keep_alive_s
