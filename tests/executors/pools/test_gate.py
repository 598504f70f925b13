import asyncio
import heapq
from collections import Counter

import numpy as np
import pytest

from turngym.errors import ConfigError
from turngym.executors.pools.gate import FairGate


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Crowd:
    """Families that always have somebody waiting; time is virtual, stays are drawn."""

    def __init__(self, capacity, weights, stays, seed=0):
        self.clock = Clock()
        self.gate = FairGate(capacity, weights, self.clock)
        self.stays = stays
        self.rng = np.random.default_rng(seed)
        self.inside = []  # a heap of when who leaves
        self.seconds = Counter()
        self.served = Counter()
        self.tasks = set()

    def come(self, family):
        task = asyncio.ensure_future(self._visit(family))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _visit(self, family):
        entered_at = await self.gate.enter(family)
        stay = self.stays[family] * self.rng.uniform(0.5, 1.5)
        heapq.heappush(self.inside, (self.clock.now + stay, len(self.served), self.rng.random(), family, entered_at))

    async def settle(self):
        for _ in range(4):
            await asyncio.sleep(0)

    async def leave_next(self):
        """Let time run until somebody leaves, and have another of that family come."""
        self.clock.now, _, _, family, entered_at = heapq.heappop(self.inside)
        self.seconds[family] += self.clock.now - entered_at
        self.served[family] += 1
        self.gate.leave(family, entered_at)
        return family

    async def end(self):
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capacity", "weights", "stays"),
    [
        (1, {"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 1.0}),
        (8, {"a": 5.0, "b": 3.0, "c": 2.0}, {"a": 1.0, "b": 1.0, "c": 1.0}),
        (4, {}, {"slow": 2.0, "quick": 0.1}),  # the slow one gets half of the time, not half of the entries
        (8, {"a": 1.0, "b": 0.05}, {"a": 0.5, "b": 2.0}),
    ],
)
async def test_long_run_shares_of_time_follow_the_weights(capacity, weights, stays):
    crowd = Crowd(capacity, weights, stays)
    for family in stays:
        for _ in range(3 * capacity):
            crowd.come(family)
    await crowd.settle()
    longest = max(stays.values())
    while crowd.clock.now < 1000 * longest / capacity:
        crowd.come(await crowd.leave_next())
        await crowd.settle()
        assert crowd.gate.num_inside == len(crowd.inside) == capacity  # never a place that nobody has
    total, whole = sum(crowd.seconds.values()), sum(weights.get(family, 1.0) for family in stays)
    for family in stays:
        assert crowd.seconds[family] / total == pytest.approx(weights.get(family, 1.0) / whole, abs=0.02)
    await crowd.end()
    assert crowd.gate.num_waiting == 0


async def test_a_family_that_was_idle_neither_starves_others_nor_starves():
    """b comes back after a alone was served for long: from then on both get half, at once."""
    crowd = Crowd(1, {}, {"a": 1.0, "b": 1.0})
    for _ in range(3):
        crowd.come("a")
    await crowd.settle()
    for _ in range(200):
        crowd.come(await crowd.leave_next())
        await crowd.settle()
    assert crowd.served == {"a": 200}
    for _ in range(3):
        crowd.come("b")
    for _ in range(20):
        crowd.come(await crowd.leave_next())
        await crowd.settle()
    assert 8 <= crowd.served["b"] <= 12
    await crowd.end()


async def test_it_never_makes_one_wait_while_there_is_room():
    gate = FairGate(2, {"rare": 0.001})
    first = await gate.enter("rare")
    second = await gate.enter("rare")  # nobody else wants it
    waiting = [asyncio.ensure_future(gate.enter("rare")) for _ in range(2)]
    await asyncio.sleep(0)
    assert (gate.num_inside, gate.num_waiting) == (2, 2)
    gate.leave("rare", first)
    gate.leave("rare", second)
    assert gate.num_inside == 2
    for entered_at in await asyncio.gather(*waiting):
        gate.leave("rare", entered_at)
    assert (gate.num_inside, gate.num_waiting) == (0, 0)


@pytest.mark.parametrize("when", ["waiting", "admitted", "late"])
async def test_whoever_gives_up_leaves_no_place_taken(when):
    gate = FairGate(1)
    entered_at = await gate.enter("a")
    if when == "late":
        with pytest.raises(TimeoutError):
            await gate.enter("b", 0.01)
    else:
        waiting = asyncio.ensure_future(gate.enter("b"))
        await asyncio.sleep(0)
        if when == "admitted":
            gate.leave("a", entered_at)  # b is let in, and cancelled before it knows
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    if when != "admitted":
        gate.leave("a", entered_at)
    assert (gate.num_inside, gate.num_waiting) == (0, 0)
    await gate.enter("a", 0.01)


def test_a_gate_that_lets_nobody_through_is_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        FairGate(0)
