"""Deadlines that share a timer do what `asyncio.timeout` does."""

import asyncio
import contextlib

import pytest

from turngym.executors.deadlines import Deadline, _here


async def test_what_ends_in_time_is_left_alone():
    with Deadline(30) as deadline:
        await asyncio.sleep(0)
    assert deadline.is_over
    assert not deadline.has_expired


async def test_the_shorter_one_expires_first_though_it_began_last():
    ended = []

    async def wait(seconds: float) -> None:
        with pytest.raises(TimeoutError), Deadline(seconds):
            await asyncio.Event().wait()
        ended.append(seconds)

    async with asyncio.timeout(30):
        await asyncio.gather(*(wait(seconds) for seconds in (0.15, 0.1, 0.05, -1)))
    assert ended == [-1, 0.05, 0.1, 0.15]


async def test_a_cancellation_from_outside_stays_one():
    async def wait() -> None:
        with Deadline(30):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_from_outside_wins_over_the_deadline():
    """As with `asyncio.timeout`: who cancelled must see that it was heard."""

    async def wait() -> None:
        with Deadline(0.01):
            try:
                await asyncio.Event().wait()
            finally:
                task.cancel()

    task = asyncio.create_task(wait())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_swallows_the_cancellation_is_known_to_be_late():
    with Deadline(0.01) as deadline, contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    assert deadline.has_expired
    assert (task := asyncio.current_task()) is not None
    assert task.cancelling() == 0


async def test_the_outer_of_two_expires():
    outer, inner = Deadline(0.01), Deadline(30)
    with pytest.raises(TimeoutError), outer, inner:
        await asyncio.Event().wait()
    assert outer.has_expired
    assert not inner.has_expired


@pytest.mark.slow
async def test_those_that_are_over_are_swept_out_and_the_others_stay():
    expired = []

    async def wait() -> None:
        with pytest.raises(TimeoutError), Deadline(0.3):
            await asyncio.Event().wait()
        expired.append(True)

    waiting = [asyncio.create_task(wait()) for _ in range(3)]
    await asyncio.sleep(0)
    for _ in range(2000):
        with Deadline(600):
            pass
        assert (timers := _here.timers) is not None
        assert len(timers._heap) < 600
    async with asyncio.timeout(30):
        await asyncio.gather(*waiting)
    assert len(expired) == 3


def test_each_loop_has_deadlines_of_its_own():
    async def expire() -> None:
        with pytest.raises(TimeoutError), Deadline(0.01):
            await asyncio.Event().wait()

    for _ in range(2):
        asyncio.run(expire())
