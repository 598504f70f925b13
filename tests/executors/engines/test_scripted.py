"""The engine of the tests and benchmarks: what it keeps, and how its waits end."""

import asyncio

import numpy as np
import pytest

from turngym.agents.base import Sampling
from turngym.errors import EngineDeadError
from turngym.executors.engines.scripted import Reply, ScriptedEngine

PROMPT = np.array([1, 2], np.int32)
SAMPLING = Sampling(max_tokens=4)


@pytest.mark.parametrize("keep", [True, False])
async def test_requests_are_counted_and_kept_only_where_wanted(keep):
    indices = []
    engine = ScriptedEngine(lambda request: indices.append(request.index) or [65], keep_requests=keep)
    for name in "abc":
        await engine.generate(PROMPT, SAMPLING, request=name)
    assert indices == [0, 1, 2]
    assert [request.name for request in engine.requests] == (["a", "b", "c"] if keep else [])


async def test_killing_wakes_every_request_that_waits():
    engine = ScriptedEngine(lambda request: Reply([65], [-1.0], latency_s=3600.0))
    requests = [asyncio.ensure_future(engine.generate(PROMPT, SAMPLING)) for _ in range(3)]
    while engine.num_running < 3:
        await asyncio.sleep(0)
    requests[0].cancel()
    await asyncio.sleep(0)
    engine.kill("unplugged")
    results = await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), 60.0)
    assert [type(result) for result in results] == [asyncio.CancelledError, EngineDeadError, EngineDeadError]
    assert "unplugged" in str(results[1])
    assert engine.num_running == 0
