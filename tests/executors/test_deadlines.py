"""Deadlines that share a timer do what `asyncio.timeout` does."""

import asyncio
import contextlib
import math

import pytest

from turngym.executors.deadlines import Deadline, _here


async def test_what_ends_in_time_is_left_alone():
    with Deadline(30) as deadline:
        await asyncio.sleep(0)
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


async def test_far_ones_expire_in_their_second_and_those_that_are_over_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
):
    loop = asyncio.get_running_loop()
    now, ended = 1000.25, []
    monkeypatch.setattr(loop, "time", lambda: now)

    async def wait(seconds: float) -> None:
        with pytest.raises(TimeoutError), Deadline(seconds):
            await asyncio.Event().wait()
        ended.append(seconds)

    async def turns() -> None:
        for _ in range(8):  # of the loop: timers, cancellations, what follows
            await asyncio.sleep(0)

    waiting = [asyncio.create_task(wait(seconds)) for seconds in (60.5, 60.25, 61.75, 0.5)]
    never = asyncio.create_task(wait(math.inf))
    await turns()
    with Deadline(60.5):
        assert (seconds := _here.seconds) is not None
        assert {second: len(those) for second, those in seconds._deadlines.items()} == {1060: 3, 1062: 1}
    assert {second: len(those) for second, those in seconds._deadlines.items()} == {1060: 2, 1062: 1}
    for at, expected in (
        (1000.75, [0.5]),
        (1060.5, [0.5, 60.25]),
        (1060.7, [0.5, 60.25]),
        (1060.8, [0.5, 60.25, 60.5]),
        (1062.0, [0.5, 60.25, 60.5, 61.75]),
        (9000.0, [0.5, 60.25, 60.5, 61.75]),
    ):
        now = at
        await turns()
        assert ended == expected
    assert not seconds._deadlines
    never.cancel()
    await asyncio.gather(*waiting)


def test_each_loop_has_deadlines_of_its_own():
    async def expire() -> None:
        with pytest.raises(TimeoutError), Deadline(0.01):
            await asyncio.Event().wait()

    for _ in range(2):
        asyncio.run(expire())
