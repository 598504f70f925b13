"""Environments that fork in this process; other files have those in others."""

import asyncio
import contextlib
import threading

import pytest

from turngym.envs.base import Action, AsyncEnv, Env
from turngym.envs.task import Task
from turngym.errors import DeadlineError, EnvError, ProgramError
from turngym.executors.pools.breaker import BURST, BreakerState
from turngym.executors.pools.env_pool import EnvPool


def env_classes(fork=lambda: None):
    """Both kinds of environment, of which `fork` does first what it is told; `closed` holds the closed ones' names."""
    closed = []

    class Forks(AsyncEnv):
        family = "forks"
        name = "first"

        async def reset(self, *, seed=None, options=None):
            return "go", {}

        @property
        def can_fork(self):
            return True

        async def fork(self):
            waits = fork()
            if waits is not None:
                with contextlib.suppress(asyncio.CancelledError):  # it goes on, and comes too late
                    await waits
            twin = type(self)()
            twin.name = "twin"
            return twin

        async def close(self):
            closed.append(self.name)

    class ForksInThread(Env):
        family = "forks"
        name = "first"

        def reset(self, *, seed=None, options=None):
            return "go", {}

        @property
        def can_fork(self):
            return True

        def fork(self):
            fork()
            twin = type(self)()
            twin.name = "twin"
            return twin

        def close(self):
            closed.append(self.name)

    return Forks, ForksInThread, closed


async def reset(pool, env_class):
    env = await pool.make(env_class, 30)
    await env.reset(Task(id="t"), 30)
    return env


async def test_a_fork_that_comes_too_late_on_the_loop_is_closed():
    forks, _, closed = env_classes(lambda: asyncio.sleep(60))
    pool = EnvPool()
    env = await reset(pool, forks)
    with pytest.raises(DeadlineError, match=r"Forks\.fork took longer than its deadline of 0\.1 s"):
        await env.fork(0.1)
    assert closed == ["twin"]
    await env.close()
    assert pool.stats().counts.num_envs == 0


async def test_a_fork_that_comes_too_late_in_a_thread_is_closed(until):
    release = threading.Event()
    _, forks, closed = env_classes(release.wait)
    pool = EnvPool()
    env = await reset(pool, forks)
    with pytest.raises(DeadlineError, match=r"ForksInThread\.fork took longer than its deadline of 0\.1 s"):
        await env.fork(0.1)
    release.set()
    await until(lambda: closed == ["twin"])
    await env.close()
    assert pool.stats().counts.num_envs == 0


async def test_what_cannot_fork_says_so_and_opens_no_breaker():
    class Plain(Env):
        def reset(self, *, seed=None, options=None):
            return "go", {}

        def step(self, action):
            return "", 0.0, False, False, {}

    pool = EnvPool()
    env = await reset(pool, Plain)
    for _ in range(BURST + 4):
        assert await env.fork(30) is None
    assert pool.stats().families["Plain"].breaker is BreakerState.CLOSED
    assert (await env.step(Action("x"), 30))[0] == ""
    await env.close()


async def test_a_program_that_refuses_opens_no_breaker_and_a_broken_sandbox_does():
    errors = [ProgramError("it holds on")] * (BURST + 4) + [OSError("down")] * BURST

    def fork():
        raise errors.pop(0)

    pool = EnvPool()
    env = await reset(pool, env_classes(fork)[0])
    for _ in range(BURST + 4):
        with pytest.raises(ProgramError):
            await env.fork(30)
    assert pool.stats().families["forks"].breaker is BreakerState.CLOSED
    for _ in range(BURST):
        with pytest.raises(OSError, match="down"):
            await env.fork(30)
    assert pool.stats().families["forks"].breaker is BreakerState.OPEN
    await env.close()


def test_nothing_forks_by_itself():
    assert not Env().can_fork
    assert not AsyncEnv().can_fork
    with pytest.raises(EnvError, match="Env cannot fork; its can_fork says so"):
        Env().fork()
