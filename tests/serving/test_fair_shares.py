"""No caller keeps out the others, and nothing is lost of what there is."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import fair_shares
from serving.fair_shares import FairShares, Share


class TooManyWaiting(Exception):
    """What a caller is told."""


class Asking:
    """Callers who have asked, in order, and who of them has a share."""

    def __init__(self, total: int) -> None:
        self.shares = FairShares(total, TooManyWaiting)
        self.tasks: list[tuple[str, asyncio.Task[Share]]] = []

    async def ask(self, caller: str, size: int = 1) -> asyncio.Task[Share]:
        task = asyncio.create_task(self.shares.acquire(caller, size))
        self.tasks.append((caller, task))
        await asyncio.sleep(0)
        return task

    async def granted(self) -> str:
        """The callers of those who have a share, in the order in which they asked."""
        await asyncio.sleep(0)
        return "".join(caller for caller, task in self.tasks if task.done())

    def end(self) -> None:
        for _, task in self.tasks:
            task.cancel()


async def test_one_caller_gets_half_and_each_other_some_of_the_rest() -> None:
    asking = Asking(8)
    for caller in "aaaaaaaa":
        await asking.ask(caller)
    assert await asking.granted() == "aaaa"
    for caller in "bbbb":
        await asking.ask(caller)
    assert await asking.granted() == "aaaabb"
    await asking.ask("c")
    assert await asking.granted() == "aaaabbc"
    asking.end()


async def test_what_is_given_back_goes_to_each_in_turn_and_to_each_callers_first() -> None:
    asking = Asking(4)
    first = [await asking.ask("a") for _ in range(4)]
    others = [await asking.ask("b") for _ in range(3)]
    assert await asking.granted() == "aab"
    (await first[0]).release()
    assert await asking.granted() == "aaab"
    (await first[1]).release()
    assert await asking.granted() == "aaabb"
    assert [task.done() for task in (*first, *others)] == [True] * 3 + [False] + [True] * 2 + [
        False
    ]
    asking.end()


async def test_a_caller_without_anything_gets_what_there_is_and_goes_first() -> None:
    asking = Asking(10)
    small = [await asking.ask("a", 1) for _ in range(5)]
    await asking.ask("b", 10)
    await asking.ask("a", 1)
    # All that is given back is for who holds nothing.
    for task in small[:4]:
        (await task).release()
    assert await asking.granted() == "aaaaa"
    (await small[4]).release()
    assert await asking.granted() == "aaaaab"
    asking.end()


async def test_more_than_there_is_counts_as_all_there_is() -> None:
    shares = FairShares(5, TooManyWaiting)
    share = await shares.acquire("a", 50)
    assert shares.granted_total == 5
    share.resize(2)
    assert shares.granted_total == 2
    share.release()
    share.release()
    assert shares.granted_total == 0


async def test_who_leaves_holds_nothing_and_holds_up_nobody() -> None:
    asking = Asking(2)
    granted_total = await asking.ask("a", 2)
    large, small = await asking.ask("b", 2), await asking.ask("b", 1)
    large.cancel()
    await asyncio.wait({large})
    (await granted_total).release()
    assert await asking.granted() == "abb"
    assert (await small) and asking.shares.granted_total == 1
    asking.end()


async def test_one_that_leaves_as_it_is_granted_gives_it_back() -> None:
    asking = Asking(1)
    granted_total = await asking.ask("a")
    waiting = await asking.ask("b")
    (await granted_total).release()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert asking.shares.granted_total == 0


async def test_a_block_gives_back_what_it_held() -> None:
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
    asking = Asking(2)
    for _ in range(3):
        await asking.ask("a")
    with pytest.raises(TooManyWaiting):
        await asking.shares.acquire("a", 1)
    await asking.ask("b")
    assert await asking.granted() == "ab"
    asking.end()


@given(
    asked=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 12)), max_size=20),
    order=st.randoms(use_true_random=False),
)
def test_all_are_granted_in_the_end_and_never_more_than_there_is(
    asked: list[tuple[str, int]], order: random.Random
) -> None:
    async def run() -> None:
        asking, shares = Asking(10), list[Share]()
        for caller, size in asked:
            await asking.ask(caller, size)
        left = [task for _, task in asking.tasks]
        while left:
            await asyncio.sleep(0)
            shares += [task.result() for task in left if task.done()]
            left = [task for task in left if not task.done()]
            assert asking.shares.granted_total <= 10
            assert shares, "somebody holds something, or all have been granted"
            shares.pop(order.randrange(len(shares))).release()
        for share in shares:
            share.release()
        assert asking.shares.granted_total == 0

    asyncio.run(run())
