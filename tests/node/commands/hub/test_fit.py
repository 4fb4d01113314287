"""Models that fit into memory, and those that do not."""

from node.commands.hub.fit import fits
from serving.units import GIB


def test_a_model_fits_if_its_weights_and_some_kv_do() -> None:
    assert fits(None, 16 * GIB) == "unknown"
    assert fits(4 * GIB, 16 * GIB) == "yes"
    assert fits(14 * GIB, 16 * GIB) == "tight"
    assert fits(int(15.5 * GIB), 16 * GIB) == "no"
