import asyncio

import pytest

from turngym.envs.serving.leases import Leases
from turngym.errors import EnvLostError, EnvUnavailableError


class Thing:
    def __init__(self, *, breaks: bool = False) -> None:
        self.num_closed = 0
        self.breaks = breaks

    async def close(self) -> None:
        self.num_closed += 1
        if self.breaks:
            raise RuntimeError("stuck")


async def test_what_lies_unused_is_closed_and_what_is_used_is_not(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("turngym.envs.serving.leases.time.monotonic", lambda: now[0])
    leases: Leases[Thing] = Leases(10.0, most=3)
    things = [Thing(), Thing(breaks=True), Thing()]
    for key, thing in zip("abc", things, strict=True):
        leases.add(key, thing)
    with pytest.raises(EnvUnavailableError, match="3 sessions are open"):
        leases.add("d", Thing())
    now[0] = 9.0
    with leases.sharing("a"):
        pass  # renews it
    async with leases.using("c"):
        now[0] = 12.0
        await leases.sweep()
        assert [thing.num_closed for thing in things] == [0, 1, 0]  # one that fails to close is gone, too
    assert len(leases) == 2
    with pytest.raises(EnvLostError, match="lay unused for 10 s"):
        leases._lease("b")
    now[0] = 50.0
    await leases.sweep()
    await leases.sweep()
    assert [thing.num_closed for thing in things] == [1, 1, 1]


async def test_calls_come_one_after_the_other_and_none_after_the_end():
    leases: Leases[Thing] = Leases(10.0, most=3)
    thing = Thing()
    leases.add("a", thing)

    async def use() -> None:
        async with leases.using("a"):
            pass

    async with asyncio.timeout(20):
        async with leases.using("a"):
            waiting = asyncio.create_task(use())
            closing = asyncio.create_task(leases.close("a"))
            late = asyncio.create_task(leases.close("a"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not waiting.done()
            assert thing.num_closed == 0
        await asyncio.gather(waiting, closing, late)
        assert thing.num_closed == 1
        with pytest.raises(EnvLostError):
            await use()


async def test_everything_is_closed_at_the_end():
    leases: Leases[Thing] = Leases(10.0, most=3)
    things = [Thing(), Thing()]
    for key, thing in zip("ab", things, strict=True):
        leases.add(key, thing)
    await leases.close_all()
    assert [thing.num_closed for thing in things] == [1, 1]
