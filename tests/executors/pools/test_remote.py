"""Environments in Ray actors; one Ray for all tests of this file."""

import asyncio
import os
import time

import pytest
import ray

from turngym.agents.base import Sampling
from turngym.envs.base import Action
from turngym.envs.options import EnvPoolOptions
from turngym.envs.task import Task
from turngym.errors import ConfigError, DeadlineError, EnvLostError, EnvUnavailableError
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.episodes.retry import retrying
from turngym.executors.pools.base import Kept
from turngym.executors.pools.env_pool import EnvPool
from turngym.executors.pools.from_options import make_pool
from turngym.executors.pools.remote import RemoteHost

pytestmark = [pytest.mark.slow, pytest.mark.heavy]


@pytest.fixture(scope="module", autouse=True)
def small_ray():
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(
        num_cpus=16,
        resources={"envnode": 4},
        object_store_memory=100 << 20,
        include_dashboard=False,
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@pytest.fixture
async def make_remote_pool():
    pools = []

    def make(num_workers=2, grace_s=10.0, **options):
        chosen = EnvPoolOptions(num_workers=num_workers, num_cpus=0.5, **options)
        pools.append(EnvPool(max_wait_s=60.0, host=RemoteHost(chosen, {"envnode": 1.0}, grace_s)))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
    deadline = time.monotonic() + 30
    while ray.available_resources().get("envnode") != 4:
        assert time.monotonic() < deadline, "a worker is still there"
        await asyncio.sleep(0.1)


async def reset(pool, factory):
    env = await pool.make(factory, 30)
    await env.reset(Task(id="t"), 30)
    return env


async def seen(env, action, timeout_s=30.0):
    return (await env.step(Action(action), timeout_s))[0]


async def test_environments_of_both_kinds_live_in_workers(make_remote_pool, bad_env, one_step):
    pool = make_remote_pool()
    envs = [await reset(pool, bad_env(name)) for name in ("Odd", "Odd", "AsyncOdd", "AsyncOdd")]
    pids = [await seen(env, "pid") for env in envs]
    assert pids[0] == pids[2] != pids[1] == pids[3]
    assert str(os.getpid()) not in pids
    with pytest.raises(KeyError, match="of its own"):
        await seen(envs[0], "fail of its own")
    with pytest.raises(DeadlineError, match=r"AsyncOdd\.step took longer than its deadline of 0\.2 s"):
        await seen(envs[2], "nap 60", 0.2)
    assert await seen(envs[1], "nap 0") == "rested"
    states = await pool.state_dict()
    assert sorted(state["num_steps"] for state in states["Odd"]) == [2, 2]
    for env in envs:
        await env.close()
    stats = pool.stats()
    assert (stats.counts.num_envs, stats.counts.num_workers, stats.num_close_failures) == (0, 2, 0)
    assert set(stats.families) == {"Odd", "odd"}
    other = make_remote_pool(1)
    other.load_state_dict(states)
    await one_step(other, bad_env("Odd"), "pid")
    (state,) = (await other.state_dict())["Odd"]
    assert state == {"num_steps": 5}


async def test_the_options_make_such_a_pool_with_processes_in_it(bad_env, one_step):
    options = EnvPoolOptions(
        backend="process", num_processes=1, num_workers=1, num_cpus=0.5, resources='{"envnode": 1}'
    )
    pool = make_pool(options, 60.0)
    await pool.start()
    with pytest.raises(DeadlineError, match="its worker process was killed"):
        await one_step(pool, bad_env("Odd"), "hold 60", 0.5)
    assert (await one_step(pool, bad_env("Odd"), "pid")).isdigit()
    assert pool.stats().counts.num_killed == 1
    pool.close()


async def test_episodes_of_a_worker_that_dies_are_begun_again(make_remote_pool, bad_env, byte_agent):
    pool = make_remote_pool(max_restarts=1)
    bystander = await reset(pool, bad_env("AsyncOdd"))
    executor = MultiTurn(byte_agent, bad_env("AsyncOdd"), pool, Limits())
    engine = ScriptedEngine(lambda request: list(b"die" if request.index == 0 else b"pid"))
    trajectory = await retrying(executor, Task(id="t"), 0, engine, Sampling(max_tokens=16), backoff_s=0.0)
    assert trajectory.is_valid
    (failure,) = trajectory.earlier_failures
    assert "its worker died" in failure.message
    assert (await seen(bystander, "pid")).isdigit()  # the others go on
    await bystander.close()
    async with asyncio.timeout(60):
        while pool.stats().counts.num_workers < 2:
            await asyncio.sleep(0.05)
    assert pool.stats().counts.num_killed == 1


async def test_restarts_are_bounded(make_remote_pool, bad_env):
    pool = make_remote_pool(1, max_restarts=0)
    env, neighbour = await reset(pool, bad_env("AsyncOdd")), await reset(pool, bad_env("Odd"))
    with pytest.raises(EnvLostError, match="its worker died"):
        await seen(env, "die")
    with pytest.raises(EnvLostError, match="Odd was lost with its worker"):
        await seen(neighbour, "pid")
    with pytest.raises(EnvUnavailableError, match="max_restarts are used up"):
        await pool.make(bad_env("Odd"), 30)
    await env.close()
    await neighbour.close()


async def test_a_worker_whose_loop_is_blocked_is_killed(make_remote_pool, bad_env):
    pool = make_remote_pool(1, grace_s=0.5)
    env = await reset(pool, bad_env("AsyncOdd"))
    with pytest.raises(DeadlineError, match=r"deadline of 0\.3 s; it did not answer"):
        await seen(env, "block 60", 0.3)
    await env.close()
    again = await reset(pool, bad_env("AsyncOdd"))  # another took its place
    assert (await seen(again, "pid")).isdigit()
    await again.close()


@pytest.mark.parametrize("name", ["Odd", "AsyncOdd"])
async def test_a_cancelled_step_frees_its_environment(make_remote_pool, bad_env, until, name):
    pool = make_remote_pool(1)
    env = await reset(pool, bad_env(name))
    family = env._family
    step = asyncio.ensure_future(seen(env, "nap 1"))
    await until(lambda: family.stats().running == 1)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    await env.close()
    counts = pool.stats().counts
    assert (counts.num_envs, pool.stats().num_close_failures) == (0, 0)
    assert (family.stats().running, family.stats().waiting) == (0, 0)


async def test_a_resource_that_no_node_has_is_said_in_time(bad_env):
    options = EnvPoolOptions(num_workers=2, num_cpus=0.5, resources='{"spaceship": 1}', start_timeout_s=1.0)
    pool = make_pool(options, 60.0)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"start_timeout_s 1: it wants .*'spaceship': 1.*spaceship 0 of 0 free"):
            await pool.start()
    with pytest.raises(ConfigError, match="spaceship"):
        await pool.make(bad_env("Odd"), 30)
    pool.close()


@pytest.mark.parametrize("name", ["Odd", "AsyncOdd"])
async def test_environments_fork_in_their_worker(make_remote_pool, bad_env, name, until):
    pool = make_remote_pool()
    one = await reset(pool, bad_env(name))
    await seen(one, "say both")
    twin = await one.fork(30)
    assert await seen(twin, "pid") == await seen(one, "pid")
    assert (await seen(twin, "say twin"), await seen(one, "say one")) == ("both twin", "both one")
    await seen(one, "can not")
    assert await one.fork(30) is None
    await until(lambda: pool.stats().counts.num_envs == 2)
    await twin.close()
    await one.close()


async def test_the_state_of_a_worker_that_dies_goes_to_the_one_in_its_place(make_remote_pool, bad_env, one_step):
    pool = make_remote_pool(1, max_restarts=1)
    pool.load_state_dict({"Odd": [{"num_steps": 5}]})
    await one_step(pool, bad_env("Odd"), "pid")
    assert await pool.kept(30) == Kept({"Odd": [{"num_steps": 6}]})
    victim = await reset(pool, bad_env("AsyncOdd"))
    with pytest.raises(EnvLostError):
        await seen(victim, "die")
    await victim.close()
    assert await pool.kept(30) == Kept({"Odd": [{"num_steps": 6}]})
    await one_step(pool, bad_env("Odd"), "pid")
    assert await pool.kept(30) == Kept({"Odd": [{"num_steps": 7}]})
