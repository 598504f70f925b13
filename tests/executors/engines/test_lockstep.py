"""In lockstep every wave of requests is the same in every run, whatever the episodes' own times."""

import asyncio
import random

import numpy as np
import pytest

from turngym.agents.base import Sampling
from turngym.errors import EngineDeadError, EngineError
from turngym.executors.engines.lockstep import Ask, Lockstep
from turngym.executors.engines.scripted import ScriptedEngine

ONE = Sampling(1)


class Recording(ScriptedEngine):
    """Keeps the names of each wave."""

    def __init__(self, script=None):
        super().__init__(script or (lambda request: [1]))
        self.waves = []

    async def submit_wave(self, asks):
        self.waves.append([ask.request for ask in asks])
        return await super().submit_wave(asks)


def prompt(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


async def test_a_wave_waits_for_every_episode_and_goes_by_name():
    engine = Recording()
    lockstep = Lockstep(engine)
    turns = {"c": 1, "a": 3, "b": 2}
    seats = {name: lockstep.seat() for name in turns}

    async def episode(name: str, seat) -> None:
        for turn in range(turns[name]):
            await asyncio.sleep(random.random() * 0.01)
            await seat.generate(prompt(1), ONE, request=f"{name}/{turn}")
        seat.leave()

    async with asyncio.timeout(60):
        await asyncio.gather(*(episode(name, seat) for name, seat in seats.items()))
    assert engine.waves == [["a/0", "b/0", "c/0"], ["a/1", "b/1"], ["a/2"]]
    assert [request.name for request in engine.requests] == ["a/0", "b/0", "c/0", "a/1", "b/1", "a/2"]


async def test_episodes_that_are_expected_are_waited_for():
    engine = Recording()
    lockstep = Lockstep(engine)
    lockstep.expect(2)
    first = lockstep.seat()
    early = asyncio.create_task(first.generate(prompt(1), ONE, request="b"))
    await asyncio.sleep(0.02)
    assert engine.waves == []
    second = lockstep.seat()
    async with asyncio.timeout(60):
        await asyncio.gather(early, second.generate(prompt(1), ONE, request="a"))
    assert engine.waves == [["a", "b"]]
    assert first.max_context == engine.max_context


async def test_who_was_expected_and_never_came_is_forgotten_with_the_next():
    engine = Recording()
    lockstep = Lockstep(engine)
    lockstep.expect(5)  # cancelled before they took their seats
    lockstep.expect(1)
    seat = lockstep.seat()
    async with asyncio.timeout(60):
        await seat.generate(prompt(1), ONE, request="a")
    assert engine.waves == [["a"]]


async def test_a_cancelled_episode_holds_nobody_up():
    engine = Recording()
    lockstep = Lockstep(engine)
    seats = [lockstep.seat() for _ in range(3)]
    asked = [asyncio.create_task(seats[i].generate(prompt(1), ONE, request=str(i))) for i in (0, 1)]
    await asyncio.sleep(0)
    asked[0].cancel()
    await asyncio.wait([asked[0]])
    third = asyncio.create_task(seats[2].generate(prompt(1), ONE, request="2"))
    await asyncio.sleep(0.02)
    assert engine.waves == []  # it may still ask again
    seats[0].leave()
    seats[0].leave()
    async with asyncio.timeout(60):
        await asyncio.gather(asked[1], third)
    assert engine.waves == [["1", "2"]]


async def test_a_request_cancelled_in_the_engine_leaves_it():
    engine = ScriptedEngine(token_latency_s=60.0)
    seat = Lockstep(engine).seat()
    asked = asyncio.create_task(seat.generate(prompt(1), ONE))
    async with asyncio.timeout(60):
        while not engine.num_running:
            await asyncio.sleep(0)
        asked.cancel()
        while engine.num_running:
            await asyncio.sleep(0)


async def test_each_gets_its_own_error_and_all_that_of_a_dead_engine():
    def script(request):
        if request.name == "bad":
            raise EngineError("not this one")
        return [1]

    engine = Recording(script)
    lockstep = Lockstep(engine)
    seats = [lockstep.seat(), lockstep.seat()]

    async def ask() -> list[object]:
        calls = [seat.generate(prompt(1), ONE, request=name) for seat, name in zip(seats, ("bad", "good"), strict=True)]
        async with asyncio.timeout(60):
            return await asyncio.gather(*calls, return_exceptions=True)

    bad, good = await ask()
    assert isinstance(bad, EngineError)
    assert good.token_ids.tolist() == [1]
    engine.kill()
    assert [type(outcome) for outcome in await ask()] == [EngineDeadError, EngineDeadError]


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.timeout(280)
@pytest.mark.asyncio(loop_scope="session")
async def test_two_runs_on_vllm_are_the_same_to_the_bit(rig):
    """Eight episodes of three turns, with more requests than places and callers that take random times."""

    async def run() -> dict[str, tuple[list[int], bytes]]:
        await rig.engine.pause()  # forget what the run before left in the prefix cache
        await rig.engine.resume()
        lockstep = Lockstep(rig.engine)
        said = {}

        async def episode(number: int, seat) -> None:
            context = np.random.default_rng(number).integers(0, 256, 5 + 9 * number).astype(np.int32)
            for turn in range(3):
                await asyncio.sleep(random.random() * 0.05)
                sampling = Sampling(5 + (3 * number + 5 * turn) % 11, seed=100 * number + turn)
                completion = await seat.generate(context, sampling, request=f"{number}/{turn}")
                said[f"{number}/{turn}"] = (completion.token_ids.tolist(), completion.logprobs.tobytes())
                context = np.concatenate([context, completion.token_ids])
            seat.leave()

        seats = [lockstep.seat() for _ in range(8)]
        async with asyncio.timeout(120):
            await asyncio.gather(*(episode(number, seat) for number, seat in enumerate(seats)))
        return said

    first = await run()
    assert len(first) == 24
    assert await run() == first


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.timeout(280)
@pytest.mark.asyncio(loop_scope="session")
async def test_no_request_of_a_wave_begins_before_all_are_there(rig, monkeypatch):
    begin, sampled = rig.engine._begin, []

    async def begin_slowly(ask):
        task = await begin(ask)
        await asyncio.sleep(0.05)
        sampled.append(sorted(rig.engine._child.num_sampled().values()))
        return task

    monkeypatch.setattr(rig.engine, "_begin", begin_slowly)
    asks = [Ask(prompt(1, 2, 3), Sampling(5)), Ask(prompt(4), Sampling(9000)), Ask(prompt(5), Sampling(5))]
    first, refused, last = await rig.engine.submit_wave(asks)
    assert sampled == [[0], [0], [0, 0]]
    for task in (first, last):
        assert len((await task).token_ids) == 5
    with pytest.raises(EngineError, match="exceed the context"):
        await refused
