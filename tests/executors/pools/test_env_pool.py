import asyncio
import functools
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter

import pytest

from turngym.agents.base import Sampling
from turngym.envs.base import AsyncEnv, Env
from turngym.envs.factory import EnvFactory
from turngym.envs.task import Task
from turngym.errors import ConfigError, DeadlineError
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.episodes.trajectory import EndReason, FailureKind
from turngym.executors.pools.env_pool import EnvPool

SAMPLING = Sampling(max_tokens=4)


class Blocks(Env):
    """Blocks in `step` when its task's label says so, until `release` is set."""

    release = threading.Event()
    closed: Counter = Counter()
    threads: set = set()

    def reset(self, *, seed=None, options=None):
        self.task = options["task"]
        return "go", {}

    def step(self, action):
        self.threads.add(threading.current_thread().name)
        if self.task.label == "block":
            self.release.wait(60)
        return "", 1.0, True, False, {}

    def close(self):
        self.closed[self.task.id] += 1


@pytest.fixture
def blocks():
    class Fresh(Blocks):
        release = threading.Event()
        closed: Counter = Counter()

    yield Fresh
    Fresh.release.set()


def engine():
    return ScriptedEngine(lambda request: [120])


async def until(condition, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.01)


@pytest.mark.slow
def test_stuck_environments_hold_up_nobody(byte_agent, blocks):
    """200 episodes pass through 4 threads while 8 environments block for ever."""
    pool = EnvPool(4, close_timeout_s=0.1)
    executor = MultiTurn(byte_agent, blocks, pool, Limits(env_timeout_s=0.5))
    tasks = [Task(id=str(i), label="block" if i % 26 == 0 else None) for i in range(208)]

    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.ensure_future(tick())
        one_engine = engine()
        async with asyncio.timeout(60):
            results = await asyncio.gather(*(executor.run(task, 0, one_engine, SAMPLING) for task in tasks))
        ticking.cancel()
        stuck = pool.num_stuck
        blocks.release.set()
        await until(lambda: pool.num_stuck == 0)
        return results, stuck, ticks

    results, stuck, ticks = asyncio.run(main())
    for task, trajectory in zip(tasks, results, strict=True):
        if task.label == "block":
            assert trajectory.failure.kind is FailureKind.ENV_TIMEOUT
            assert "Fresh.step took longer than its deadline of 0.5 s" in trajectory.failure.message
            assert trajectory.failure.turn == 0
        else:
            assert trajectory.end_reason is EndReason.TERMINATED
    assert stuck == 8
    assert pool.num_abandoned == 8
    assert ticks > 10  # the event loop went on
    assert set(blocks.closed.values()) == {1}
    assert len(blocks.closed) == 208


@pytest.mark.slow
def test_time_in_the_queue_does_not_count(byte_agent):
    class Naps(Blocks):
        def step(self, action):
            time.sleep(0.1)
            return "", 1.0, True, False, {}

    pool = EnvPool(1)
    executor = MultiTurn(byte_agent, Naps, pool, Limits(env_timeout_s=1.0))

    async def main():
        one_engine = engine()
        return await asyncio.gather(*(executor.run(Task(id=str(i)), 0, one_engine, SAMPLING) for i in range(15)))

    assert all(trajectory.is_valid for trajectory in asyncio.run(main()))  # the last one waited for 1.5 s


@pytest.mark.slow
def test_thousands_of_environments_share_few_threads(byte_agent, echo):
    pool = EnvPool(4)
    executor = MultiTurn(byte_agent, lambda: echo(turns=1), pool, Limits())
    before = threading.active_count()

    async def main():
        one_engine = engine()
        results = await asyncio.gather(*(executor.run(Task(id=str(i)), 0, one_engine, SAMPLING) for i in range(1000)))
        return results, threading.active_count() - before

    results, num_threads = asyncio.run(main())
    assert sum(trajectory.reward for trajectory in results) == 1000
    assert num_threads <= 4


@pytest.mark.parametrize("stage", ["generate", "step"])
def test_cancelling_closes_the_environment_once(byte_agent, blocks, stage):
    pool = EnvPool(2, close_timeout_s=5.0)
    executor = MultiTurn(byte_agent, blocks, pool, Limits())
    slow = ScriptedEngine(lambda request: Reply([120], [-1.0], latency_s=60.0 if stage == "generate" else 0.0))
    task = Task(id="t", label="block")

    async def main():
        running = asyncio.ensure_future(executor.run(task, 0, slow, SAMPLING))
        if stage == "generate":
            await until(lambda: slow.num_running == 1)
        else:
            await until(lambda: slow.requests and slow.num_running == 0)
            asyncio.get_running_loop().call_later(0.2, blocks.release.set)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert slow.num_running == 0

    asyncio.run(main())
    assert blocks.closed == {"t": 1}


def test_an_environment_that_was_made_too_late_is_closed():
    closed = threading.Event()
    may_go = threading.Event()

    class Late(Env):
        def __init__(self):
            may_go.wait(60)

        def close(self):
            closed.set()

    async def main():
        pool = EnvPool(1)
        with pytest.raises(DeadlineError, match="making Late took longer"):
            await pool.make(Late, 0.05)
        may_go.set()
        await until(closed.is_set)

    asyncio.run(main())


@pytest.mark.parametrize("make", [functools.partial, lambda cls, name: EnvFactory("Notes", cls, {"name": name})])
def test_async_environments_stay_in_their_episodes_task(byte_agent, make):
    """Cancel scopes and clients that must be left by the task that entered them depend on it."""
    seen = []

    class Notes(AsyncEnv):
        def __init__(self, name):
            asyncio.get_running_loop()  # made on the loop
            self.name = name

        async def reset(self, *, seed=None, options=None):
            seen.append(asyncio.current_task())
            return "go", {}

        async def step(self, action):
            seen.append(asyncio.current_task())
            return "", 1.0, True, False, {}

        async def close(self):
            seen.append(asyncio.current_task())

    async def main():
        executor = MultiTurn(byte_agent, make(Notes, "x"), EnvPool(1), Limits())
        assert (await executor.run(Task(id="t"), 0, engine(), SAMPLING)).is_valid
        assert seen == [asyncio.current_task()] * 3

    asyncio.run(main())


@pytest.mark.parametrize("swallows", [False, True])
def test_async_environments_have_deadlines(byte_agent, swallows):
    closed = []

    class Hangs(AsyncEnv):
        async def reset(self, *, seed=None, options=None):
            return "go", {}

        async def step(self, action):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if not swallows:
                    raise
            return "", 1.0, True, False, {}

        async def close(self):
            closed.append(1)

    async def main():
        executor = MultiTurn(byte_agent, Hangs, EnvPool(1), Limits(env_timeout_s=0.1))
        return await executor.run(Task(id="t"), 0, engine(), SAMPLING)

    trajectory = asyncio.run(main())
    assert trajectory.failure.kind is FailureKind.ENV_TIMEOUT
    assert len(trajectory.rewards_per_turn) == 0
    assert closed == [1]


def test_cancelling_an_async_environment_closes_it():
    closed = []

    class Hangs(AsyncEnv):
        async def reset(self, *, seed=None, options=None):
            await asyncio.sleep(60)

        async def close(self):
            closed.append(1)

    async def main():
        executor = MultiTurn(None, Hangs, EnvPool(1), Limits())
        running = asyncio.ensure_future(executor.run(Task(id="t"), 0, engine(), SAMPLING))
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert closed == [1]


@pytest.mark.slow
def test_the_process_does_not_wait_for_stuck_threads():
    program = textwrap.dedent("""
        import asyncio, time
        from turngym.errors import DeadlineError
        from turngym.executors.pools.env_pool import EnvPool

        async def main():
            try:
                await EnvPool(1).make(lambda: time.sleep(600), 0.05)
            except DeadlineError:
                print("given up")

        asyncio.run(main())
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "given up\n"


def test_a_pool_without_threads_is_refused():
    with pytest.raises(ConfigError, match="num_threads"):
        EnvPool(0)
