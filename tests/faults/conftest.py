"""Everything here meets a fault. Most tests have the router in their own loop, before nodes that do
what is in a script; where processes matter, all share one fleet of them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.faults.rig import CALLERS, Fleet, real_fleet
from tests.router.conftest import add_agent, add_node, impatient, router, start_node

__all__ = ["add_agent", "add_node", "impatient", "router", "start_node"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.acceptance)


@pytest_asyncio.fixture(autouse=True)
async def callers_leave() -> AsyncIterator[None]:
    yield
    while CALLERS:
        CALLERS.pop().leave()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Router and agents as processes, for all tests that leave them as they were."""
    with real_fleet(
        tmp_path_factory.mktemp("shared"),
        swift={"token_interval_s": 0.02, "max_rows": 2},
        late={"first_token_delay_s": 60.0, "max_rows": 8},
        heavy={"load_delay_s": 60.0},
    ) as fleet:
        yield fleet
