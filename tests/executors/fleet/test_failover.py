"""Who answers when an engine cannot; every engine here is a scripted one."""

import asyncio

import numpy as np
import pytest

from turngym.agents.base import Sampling
from turngym.agents.images import PlacedImage
from turngym.envs.images import as_image
from turngym.errors import EngineDeadError, EngineError
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.fleet.failover import Failover

SAMPLING = Sampling(max_tokens=4)
PROMPT = np.array([1, 2], np.int32)
GENEROUS_S = 30.0


def alive(script) -> tuple[ScriptedEngine, Failover]:
    engine = ScriptedEngine(script)
    failover = Failover(engine)
    failover.revived()
    return engine, failover


def slow(token: int) -> Reply:
    return Reply([token], [-1.0], latency_s=600.0)


async def ask(failover: Failover, **words) -> list[int]:
    async with asyncio.timeout(GENEROUS_S):
        return (await failover.generate(PROMPT, SAMPLING, **words)).token_ids.tolist()


async def until(holds) -> None:
    async with asyncio.timeout(GENEROUS_S):
        while not holds():
            await asyncio.sleep(0.001)


async def test_its_own_engine_answers_as_long_as_it_lives():
    _, own = alive(lambda request: [1])
    own.peers = [alive(lambda request: [2])[1].answer]
    assert await ask(own) == [1]
    assert own.num_moved == 0


async def test_a_request_that_dies_on_the_way_is_asked_of_a_peer_from_its_prompt():
    engine, own = alive(lambda request: slow(1))
    peer_engine, peer = alive(lambda request: [2])
    own.peers = [peer.answer]
    request = asyncio.create_task(ask(own))
    await until(lambda: engine.num_running == 1)
    engine.kill()
    assert await request == [2]
    assert peer_engine.requests[0].prompt_ids.tolist() == [1, 2]
    assert (own.lives, own.num_moved) == (False, 1)
    assert await ask(own) == [2]  # and so are those that come after
    assert len(engine.requests) == 1


async def test_a_dead_peer_is_passed_over():
    engine, own = alive(lambda request: [1])
    dead_engine, dead = alive(lambda request: [3])
    _, lives = alive(lambda request: [2])
    own.peers = [dead.answer, lives.answer]
    engine.kill()
    dead_engine.kill()
    for _ in range(20):  # in whichever order they are asked
        assert await ask(own) == [2]
    assert not dead.lives


async def test_without_any_engine_a_request_waits_for_its_own():
    dead_engine, own = alive(lambda request: [1])
    other_engine, other = alive(lambda request: [2])
    own.peers = [other.answer]
    dead_engine.kill()
    other_engine.kill()
    request = asyncio.create_task(ask(own))
    await until(lambda: not own.lives and not other.lives)
    own._own = ScriptedEngine([[5]])
    own.revived()
    assert await request == [5]


@pytest.mark.slow
async def test_a_peer_that_is_revived_first_answers():
    dead_engine, own = alive(lambda request: [1])
    other_engine, other = alive(lambda request: [2])
    own.peers = [other.answer]
    dead_engine.kill()
    other_engine.kill()
    request = asyncio.create_task(ask(own))
    await until(lambda: not own.lives and not other.lives)
    other._own = ScriptedEngine([[6]])
    other.revived()
    assert await request == [6]


async def test_an_engine_without_current_weights_answers_nobody():
    """Started anew, and the update has not come yet."""
    engine = ScriptedEngine([[1]])
    bare = Failover(engine)
    bare.peers = [alive(lambda request: [2])[1].answer]
    assert await ask(bare) == [2]
    with pytest.raises(EngineDeadError, match="no current weights yet"):
        await bare.answer(PROMPT, SAMPLING, None, "r")
    assert engine.requests == []
    bare.revived()
    assert await ask(bare) == [1]
    bare.lost()
    assert await ask(bare) == [2]


async def test_cancelling_ends_the_request_wherever_it_is():
    engine, own = alive(lambda request: slow(1))
    peer_engine, peer = alive(lambda request: slow(2))
    own.peers = [peer.answer]
    for kills in (False, True):
        request = asyncio.create_task(ask(own))
        await until(lambda: engine.num_running == 1 or peer_engine.num_running == 1)
        if kills:
            engine.kill()
            await until(lambda: peer_engine.num_running == 1)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert (engine.num_running, peer_engine.num_running) == (0, 0)
    request = asyncio.create_task(ask(Failover(engine)))  # waits for an engine
    await asyncio.sleep(0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


@pytest.mark.parametrize("num_turns", range(5))
async def test_cancelling_holds_also_at_the_moment_the_engine_is_back(num_turns):
    """However many turns of the event loop lie between them."""
    engine = ScriptedEngine(lambda request: slow(1))
    own = Failover(engine)
    request = asyncio.create_task(ask(own))
    for _ in range(3):
        await asyncio.sleep(0)
    own.revived()
    for _ in range(num_turns):
        await asyncio.sleep(0)
    request.cancel()
    done, _ = await asyncio.wait([request], timeout=1.0)
    assert (len(done), request.cancelled(), engine.num_running) == (1, True, 0)


async def test_a_request_that_is_refused_is_refused_by_no_one_else():
    """An engine that answers with an error lives, and another would say the same."""

    def refuses(request):
        raise EngineError("too long")

    _, own = alive(refuses)
    peer_engine, peer = alive(lambda request: [2])
    own.peers = [peer.answer]
    with pytest.raises(EngineError, match="too long"):
        await ask(own)
    assert (own.lives, peer_engine.requests) == (True, [])


async def test_a_peer_is_shown_the_images_too():
    own = Failover(ScriptedEngine([[1]]))
    peer_engine, peer = alive(lambda request: [2])
    own.peers = [peer.answer]
    images = (PlacedImage(as_image(np.zeros((2, 2, 3), np.uint8)), 0, 2, (1,)),)
    assert await ask(own, images=images) == [2]
    assert peer_engine.requests[0].images == images
