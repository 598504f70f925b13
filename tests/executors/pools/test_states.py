import asyncio
import threading

import pytest

from turngym.envs.base import AsyncEnv, Env, Stateful
from turngym.envs.factory import EnvFactory
from turngym.errors import EnvError
from turngym.executors.pools.base import Kept
from turngym.executors.pools.env_pool import EnvPool
from turngym.executors.pools.processes import ProcessHost
from turngym.executors.pools.states import joined, shared_out


@pytest.fixture
def counting():
    class Counting(Env):
        num_made = 0

        def __init__(self):
            type(self).num_made += 1

        @classmethod
        def state_dict(cls):
            return cls.num_made

        @classmethod
        def load_state_dict(cls, state):
            cls.num_made += state

    return Counting


def test_states_are_dealt_out_each_once():
    states = {"a": [1, 2, 3, 4, 5], "b": [6]}
    parts = shared_out(states, 2)
    assert parts == [{"a": [1, 3, 5], "b": [6]}, {"a": [2, 4], "b": []}]
    assert joined(parts) == {"a": [1, 3, 5, 2, 4], "b": [6]}


async def test_a_class_of_this_process_takes_all_and_gives_one(counting):
    assert isinstance(counting, Stateful)
    pool = EnvPool(1)
    pool.load_state_dict({"Counting": [10, 20], "Elsewhere": [{"level": 3}]})
    env = await pool.make(counting, 30)
    await (await pool.make(counting, 30)).close()
    await env.close()
    assert await pool.state_dict() == {"Counting": [32], "Elsewhere": [{"level": 3}]}  # what nobody asked for is kept


async def test_a_class_that_lost_its_methods_is_told(echo):
    pool = EnvPool(1)
    pool.load_state_dict({"Echo": [1]})
    with pytest.raises(EnvError, match="holds a state of Echo, which has no state_dict and load_state_dict"):
        await pool.make(echo, 30)


async def test_members_of_one_class_share_its_state(counting):
    """It is kept once, under the class's name, or counts would double with every resume."""
    easy, hard = (EnvFactory(name, counting, family=name) for name in ("easy", "hard"))
    pool = EnvPool(1)
    pool.load_state_dict({"Counting": [10], "Elsewhere": [1]})
    for factory in (hard, easy, hard):
        await (await pool.make(factory, 30)).close()
    assert await pool.state_dict() == {"Counting": [13], "Elsewhere": [1]}
    assert set(pool.stats().families) == {"easy", "hard"}


async def test_families_whose_states_come_one_after_the_other_do_not_push_each_other_out():
    host = ProcessHost(2, None, {})
    host.restore({"a": [1, 2, 3]})
    host.restore({"b": [4]})
    assert (await host.states(1.0)).states == {"a": [1, 3, 2], "b": [4]}


async def test_a_state_that_cannot_be_had_stays_as_it_was_last_known_and_is_complained_of(counting):
    """It raises, cannot be pickled, or does not come; a neighbour's is had all the same, and a late one is noted."""
    gate = threading.Event()

    class Moody(counting):
        num_made, mood = 0, "good"

        @classmethod
        def state_dict(cls):
            if cls.mood == "bad":
                raise KeyError("level")
            if cls.mood == "slow":
                gate.wait(30)
            return (lambda: None) if cls.mood == "odd" else cls.num_made

    pool = EnvPool(1)
    pool.load_state_dict({"Moody": [10, 20]})
    for factory in (counting, Moody):
        await (await pool.make(factory, 30)).close()
    Moody.mood = "bad"
    kept = await pool.kept(30)
    assert kept.states == {"Counting": [1], "Moody": [10, 20]}
    (line,) = kept.complaints
    assert "what Moody keeps could not be had" in line
    assert "KeyError('level')" in line
    Moody.mood = "good"
    assert (await pool.kept(30)) == Kept({"Counting": [1], "Moody": [31]})
    await (await pool.make(Moody, 30)).close()
    for mood, timeout_s, why in (("odd", 30, "pickle"), ("slow", 0.05, "no answer within 0.05 s")):
        Moody.mood = mood
        kept = await pool.kept(timeout_s)
        assert kept.states == {"Counting": [1], "Moody": [31]}
        assert why in kept.complaints[0]
    gate.set()
    async with asyncio.timeout(30):
        while pool._host._sync_host._own.known["Moody"] != [32]:
            await asyncio.sleep(0.01)


async def test_a_state_on_the_event_loop_that_raises_ends_nothing(caplog):
    class Moody(AsyncEnv):
        @classmethod
        def state_dict(cls):
            raise KeyError("level")

        @classmethod
        def load_state_dict(cls, state):
            cls.loaded = state

    pool = EnvPool(1)
    pool.load_state_dict({"Moody": [7]})
    await (await pool.make(Moody, 30)).close()
    assert Moody.loaded == 7
    assert await pool.state_dict() == {"Moody": [7]}
    assert "what Moody keeps could not be had" in caplog.text


async def test_a_state_that_its_class_did_not_take_is_not_forgotten(counting):
    """The first environment fails, and so does every other, until the class takes it."""

    class Picky(counting):
        is_ready = False

        @classmethod
        def load_state_dict(cls, state):
            if not cls.is_ready:
                raise ValueError("not yet")
            cls.num_made += state

    pool = EnvPool(1)
    pool.load_state_dict({"Picky": [10]})
    for _ in range(2):
        with pytest.raises(ValueError, match="not yet"):
            await pool.make(Picky, 30)
    Picky.is_ready = True
    await (await pool.make(Picky, 30)).close()
    assert await pool.state_dict() == {"Picky": [13]}
