"""No caller keeps out the others, and nothing is lost of what there is."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import fair_shares
from serving.fair_shares import FairShares, Share


class TooManyWaiting(Exception):
    """The error that a caller gets."""


class Requests:
    """Callers that have requested a share, in order, and which of them have one."""

    def __init__(self, total: int) -> None:
        self.shares = FairShares(total, TooManyWaiting)
        self.tasks: list[tuple[str, asyncio.Task[Share]]] = []

    async def request(self, caller: str, size: int = 1) -> asyncio.Task[Share]:
        task = asyncio.create_task(self.shares.acquire(caller, size))
        self.tasks.append((caller, task))
        await asyncio.sleep(0)
        return task

    async def granted(self) -> str:
        """The callers of those who have a share, in the order in which they requested it."""
        await asyncio.sleep(0)
        return "".join(caller for caller, task in self.tasks if task.done())

    def end(self) -> None:
        for _, task in self.tasks:
            task.cancel()


async def test_one_caller_gets_half_and_each_other_some_of_the_rest() -> None:
    requests = Requests(8)
    for caller in "aaaaaaaa":
        await requests.request(caller)
    assert await requests.granted() == "aaaa"
    for caller in "bbbb":
        await requests.request(caller)
    assert await requests.granted() == "aaaabb"
    await requests.request("c")
    assert await requests.granted() == "aaaabbc"
    requests.end()


async def test_what_is_given_back_goes_to_each_in_turn_and_to_each_callers_first() -> None:
    requests = Requests(4)
    first = [await requests.request("a") for _ in range(4)]
    others = [await requests.request("b") for _ in range(3)]
    assert await requests.granted() == "aab"
    (await first[0]).release()
    assert await requests.granted() == "aaab"
    (await first[1]).release()
    assert await requests.granted() == "aaabb"
    assert [task.done() for task in (*first, *others)] == [True] * 3 + [False] + [True] * 2 + [
        False
    ]
    requests.end()


async def test_a_caller_without_anything_gets_what_there_is_and_goes_first() -> None:
    requests = Requests(10)
    small = [await requests.request("a", 1) for _ in range(5)]
    await requests.request("b", 10)
    await requests.request("a", 1)
    # All that is given back is for callers without a share.
    for task in small[:4]:
        (await task).release()
    assert await requests.granted() == "aaaaa"
    (await small[4]).release()
    assert await requests.granted() == "aaaaab"
    requests.end()


async def test_more_than_there_is_counts_as_all_there_is() -> None:
    shares = FairShares(5, TooManyWaiting)
    share = await shares.acquire("a", 50)
    assert shares.granted_total == 5
    share.resize(2)
    assert shares.granted_total == 2
    share.release()
    share.release()
    assert shares.granted_total == 0


async def test_a_caller_that_leaves_has_no_share_and_blocks_nobody() -> None:
    requests = Requests(2)
    granted_total = await requests.request("a", 2)
    large, small = await requests.request("b", 2), await requests.request("b", 1)
    large.cancel()
    await asyncio.wait({large})
    (await granted_total).release()
    assert await requests.granted() == "abb"
    assert (await small) and requests.shares.granted_total == 1
    requests.end()


async def test_one_that_leaves_as_it_is_granted_gives_it_back() -> None:
    requests = Requests(1)
    granted_total = await requests.request("a")
    waiting = await requests.request("b")
    (await granted_total).release()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert requests.shares.granted_total == 0


async def test_a_block_gives_back_its_share() -> None:
    shares = FairShares(3, TooManyWaiting)
    with pytest.raises(ValueError, match="so"):
        async with shares.acquired("a", 3):
            assert shares.granted_total == 3
            raise ValueError("so")
    assert shares.granted_total == 0


async def test_a_caller_with_too_many_waiting_is_refused_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_shares, "MOST_WAITING", 2)
    requests = Requests(2)
    for _ in range(3):
        await requests.request("a")
    with pytest.raises(TooManyWaiting):
        await requests.shares.acquire("a", 1)
    await requests.request("b")
    assert await requests.granted() == "ab"
    requests.end()


@given(
    sizes=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 12)), max_size=20),
    order=st.randoms(use_true_random=False),
)
def test_all_are_granted_in_the_end_and_never_more_than_there_is(
    sizes: list[tuple[str, int]], order: random.Random
) -> None:
    async def run() -> None:
        requests, shares = Requests(10), list[Share]()
        for caller, size in sizes:
            await requests.request(caller, size)
        left = [task for _, task in requests.tasks]
        while left:
            await asyncio.sleep(0)
            shares += [task.result() for task in left if task.done()]
            left = [task for task in left if not task.done()]
            assert requests.shares.granted_total <= 10
            assert shares, "somebody holds something, or all have been granted"
            shares.pop(order.randrange(len(shares))).release()
        for share in shares:
            share.release()
        assert requests.shares.granted_total == 0

    asyncio.run(run())
