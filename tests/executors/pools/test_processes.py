import asyncio
import os
import time

import psutil
import pytest

from turngym.agents.base import Sampling
from turngym.envs.base import Action, Env
from turngym.envs.options import EnvPoolOptions
from turngym.envs.task import Task
from turngym.errors import DeadlineError, EnvError, EnvLostError, WorkerError
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.episodes.retry import retrying
from turngym.executors.episodes.trajectory import FailureKind
from turngym.executors.pools.base import Kept
from turngym.executors.pools.from_options import make_pool


@pytest.fixture(scope="module")
def shared_pool():
    before = children()
    pool = make_pool(EnvPoolOptions(backend="process", num_processes=2, max_memory_gib=0.5), 60.0)
    yield pool
    asyncio.run(closed(pool, before))


@pytest.fixture
def pool(shared_pool):
    yield shared_pool
    stats = shared_pool.stats()
    assert stats.counts.num_envs == 0
    assert {(f.running, f.waiting) for f in stats.families.values()} <= {(0, 0)}


def children():
    return {p.pid for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE}


async def closed(pool, before):
    """Close a pool, and wait until no process is left that was not there before."""
    assert children() > before
    pool.close()
    deadline = time.monotonic() + 30
    while children() - before:
        assert time.monotonic() < deadline, "its processes are still there"
        await asyncio.sleep(0.05)


async def two_envs(pool, factory):
    """Make environments until two share a worker; return them and one in the other worker."""
    envs = [await pool.make(factory, 30) for _ in range(3)]
    pids = []
    for env in envs:
        await env.reset(Task(id="t"), 30)
        pids.append((await env.step(Action("pid"), 30))[0])
    assert pids[0] == pids[2] != pids[1]
    assert str(os.getpid()) not in pids
    return envs[0], envs[2], envs[1]


async def close_all(*envs):
    for env in envs:
        await env.close()


@pytest.mark.slow
async def test_environments_live_in_the_workers_with_the_fewest(pool, bad_env, tmp_path):
    envs = await two_envs(pool, bad_env("Odd", log=str(tmp_path / "log")))
    assert envs[0].name == "Odd"
    assert pool.stats().counts.num_workers == 2
    await close_all(*envs)
    assert (tmp_path / "log").read_text() == "closed\n" * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "timeout_s", "error", "words"),
    [
        (
            "nap 60",
            0.5,
            DeadlineError,
            "Odd.step took longer than its deadline of 0.5 s; its worker process was killed",
        ),
        ("hold 60", 0.5, DeadlineError, "deadline of 0.5 s"),
        ("exit 3", 30, WorkerError, r"Odd\.step ended its worker process, which exited with status 3"),
        ("segfault", 30, WorkerError, "killed by SIGSEGV"),
        ("leak", 30, WorkerError, "ran out of the 0.5 GiB that --env_pool.max_memory_gib gives"),
    ],
)
async def test_what_kills_a_worker_takes_down_only_what_lives_in_it(pool, bad_env, action, timeout_s, error, words):
    killed = pool.stats().counts.num_killed
    lost = 0 if "Odd" not in pool.stats().families else pool.stats().families["Odd"].num_lost
    guilty, neighbour, other = await two_envs(pool, bad_env("Odd"))
    step = asyncio.ensure_future(guilty.step(Action(action), timeout_s))
    waiting = asyncio.ensure_future(neighbour.step(Action("pid"), 30))
    with pytest.raises(error, match=words):
        await step
    with pytest.raises(EnvLostError, match=r"Odd was lost with the worker process it shared: Odd\.step"):
        await waiting
    assert (await other.step(Action("pid"), 30))[0].isdigit()
    await close_all(guilty, neighbour, other)
    assert pool.stats().counts.num_killed == killed + 1
    assert pool.stats().families["Odd"].num_lost == lost + 1
    await close_all(*await two_envs(pool, bad_env("Odd")))  # a fresh worker took over


async def test_a_failure_of_the_environment_ends_nothing(pool, bad_env):
    guilty, neighbour, other = await two_envs(pool, bad_env("Odd"))
    for action, error, words in (
        ("fail of its own", KeyError, "of its own"),
        ("leave 3", EnvError, r"SystemExit\(3\)"),
        ("unpicklable", LookupError, "cannot be written"),
    ):
        with pytest.raises(error, match=words):
            await guilty.step(Action(action), 30)
    assert (await neighbour.step(Action("pid"), 30))[0] == (await guilty.step(Action("pid"), 30))[0]
    await close_all(guilty, neighbour, other)


@pytest.mark.slow
async def test_failures_are_typed_and_lost_attempts_begun_again(pool, bad_env, byte_agent):
    engine = ScriptedEngine(lambda request: list(b"exit 3" if request.index == 0 else b"pid"))
    executor = MultiTurn(byte_agent, bad_env("Odd"), pool, Limits())
    trajectory = await retrying(executor, Task(id="t"), 0, engine, Sampling(max_tokens=16), backoff_s=0.0)
    assert trajectory.is_valid
    assert [failure.kind for failure in trajectory.earlier_failures] == [FailureKind.ENV]
    engine = ScriptedEngine(lambda request: list(b"hold 60"))
    executor = MultiTurn(byte_agent, bad_env("Odd"), pool, Limits(env_timeout_s=0.5))
    trajectory = await executor.run(Task(id="t"), 0, engine, Sampling(max_tokens=16))
    assert trajectory.failure.kind is FailureKind.ENV_TIMEOUT


@pytest.mark.slow
async def test_a_cancelled_step_ends_by_itself_and_then_the_environment_is_closed(pool, bad_env, until, tmp_path):
    killed = pool.stats().counts.num_killed
    env = await pool.make(bad_env("Odd", log=str(tmp_path / "log")), 30)
    await env.reset(Task(id="t"), 30)
    step = asyncio.ensure_future(env.step(Action("nap 0.3"), 30))
    await until(lambda: pool.stats().families["Odd"].running == 1)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    await env.close()
    assert (tmp_path / "log").read_text() == "closed\n"
    assert pool.stats().counts.num_killed == killed


@pytest.mark.slow
async def test_a_cancelled_making_leaves_no_environment(pool, bad_env, until, tmp_path):
    making = asyncio.ensure_future(pool.make(bad_env("Odd", log=str(tmp_path / "log"), slow_s=0.5), 30))
    await until(lambda: pool.stats().families["Odd"].running == 1)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    await until(lambda: pool.stats().counts.num_envs == 0)
    assert (tmp_path / "log").read_text() == "closed\n"


async def test_what_cannot_be_sent_is_said(pool, until):
    class Local(Env):
        pass

    with pytest.raises(EnvError, match=r"making Local: what a worker process needs cannot be pickled.*named classes"):
        await pool.make(Local, 30)
    await until(lambda: pool.stats().counts.num_envs == 0)  # or its closing would end with this test's loop


@pytest.mark.slow
async def test_states_are_kept_per_worker_and_dealt_out_again(bad_env, one_step):
    """Two workers count 2 and 1 steps; three, then one, go on from there, and the sum stays."""
    before = children()
    options = EnvPoolOptions(backend="process", num_processes=2)
    first = make_pool(options, 60.0)
    envs = await two_envs(first, bad_env("Odd"))
    states = await first.state_dict()
    assert sorted(state["num_steps"] for state in states["Odd"]) == [1, 2]
    await close_all(*envs)
    await closed(first, before)
    for num_processes in (3, 1):
        pool = make_pool(EnvPoolOptions(backend="process", num_processes=num_processes), 60.0)
        pool.load_state_dict(states)
        assert await pool.state_dict() == states  # also before anything was made
        await one_step(pool, bad_env("Odd"), "pid")
        found = await pool.state_dict()
        assert sum(state["num_steps"] for state in found["Odd"]) == 4
        with pytest.raises(EnvError, match="before the first environment"):
            pool.load_state_dict(states)
        await closed(pool, before)


async def test_an_environment_forks_inside_its_worker(pool, bad_env, until, tmp_path):
    one = await pool.make(bad_env("Odd", log=str(tmp_path / "log")), 30)
    await one.reset(Task(id="t"), 30)
    await one.step(Action("say both"), 30)
    twin = await one.fork(30)
    assert twin.name == "Odd"
    assert await twin.step(Action("pid"), 30) == await one.step(Action("pid"), 30)
    assert (await twin.step(Action("say twin"), 30))[0] == "both twin"
    assert (await one.step(Action("say one"), 30))[0] == "both one"
    await one.step(Action("can not"), 30)
    assert await one.fork(30) is None
    await until(lambda: pool.stats().counts.num_envs == 2)
    await close_all(one, twin)
    assert (tmp_path / "log").read_text() == "closed\n" * 2


@pytest.mark.slow
async def test_a_fork_past_its_deadline_takes_its_worker_down(pool, bad_env, until):
    one, other, _ = envs = await two_envs(pool, bad_env("Odd"))
    await one.step(Action("forks_in 60"), 30)
    with pytest.raises(DeadlineError, match=r"Odd\.fork took longer than its deadline of 0\.2 s"):
        await one.fork(0.2)
    with pytest.raises(EnvLostError):
        await other.fork(30)
    await close_all(*envs)
    await until(lambda: pool.stats().counts.num_envs == 0)


@pytest.mark.slow
async def test_a_busy_worker_holds_up_no_state_and_a_dead_one_takes_none_along(bad_env, one_step):
    """In one worker: nothing kept, nothing asked; then busy, answered late, killed at a deadline, and replaced."""
    before = children()
    pool = make_pool(EnvPoolOptions(backend="process", num_processes=1), 60.0)
    plain = await pool.make(bad_env("Plain"), 30)
    nap = asyncio.ensure_future(plain.step(Action("nap 1"), 30))
    assert await pool.kept(30) == Kept({})
    assert not nap.done()  # it was not waited for
    odd = await pool.make(bad_env("Odd"), 30)  # behind the nap
    await nap
    await odd.step(Action("pid"), 30)
    assert await pool.kept(30) == Kept({"Odd": [{"num_steps": 1}]})
    nap = asyncio.ensure_future(odd.step(Action("nap 1"), 30))
    await asyncio.sleep(0)
    kept = await pool.kept(0.05)
    assert kept.states == {"Odd": [{"num_steps": 1}]}
    (line,) = kept.complaints
    assert "what Odd keeps could not be had" in line
    assert "no answer within 0.05 s" in line
    await nap
    assert await pool.kept(30) == Kept({"Odd": [{"num_steps": 2}]})
    nap = asyncio.ensure_future(odd.step(Action("nap 60"), 0.5))
    await asyncio.sleep(0)
    kept = await pool.kept(30)
    assert kept.states == {"Odd": [{"num_steps": 2}]}
    assert "lost with the worker process it shared" in kept.complaints[0]
    with pytest.raises(DeadlineError):
        await nap
    for env in (plain, odd):
        await env.close()
    await one_step(pool, bad_env("Plain"), "pid")
    assert await pool.kept(30) == Kept({"Odd": [{"num_steps": 2}]})  # of the worker before
    await one_step(pool, bad_env("Odd"), "pid")
    assert await pool.kept(30) == Kept({"Odd": [{"num_steps": 3}]})
    await closed(pool, before)


@pytest.mark.slow
async def test_a_state_that_raises_in_a_worker_is_named_and_its_neighbours_are_had(bad_env, one_step):
    before = children()
    pool = make_pool(EnvPoolOptions(backend="process", num_processes=1), 60.0)
    await one_step(pool, bad_env("Odd"), "pid")
    await one_step(pool, bad_env("Grumpy"), "pid")
    kept = await pool.kept(30)
    assert kept.states == {"Odd": [{"num_steps": 2}]}
    assert "what Grumpy keeps could not be had" in kept.complaints[0]
    assert "KeyError('level')" in kept.complaints[0]
    await closed(pool, before)
