import asyncio

import numpy as np
import pytest

from turngym.agents.base import Sampling
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.pools.gate import FairGate
from turngym.executors.pools.gated import GatedGenerator

PROMPT = np.asarray([1], np.int32)


@pytest.mark.slow
async def test_requests_in_flight_are_bounded_and_families_served_by_weight():
    """Of an engine with 3 places and requests of equal length, a family of weight 2 gets two of three."""
    names = []
    most = 0

    def script(request):
        nonlocal most
        names.append(request.name)
        most = max(most, engine.num_running)
        return Reply([65], [-1.0], latency_s=0.01)

    engine = ScriptedEngine(script)
    gate = FairGate(3, {"a": 2.0})
    families = {name: GatedGenerator(engine, gate, name) for name in ("a", "b")}
    assert families["a"].max_context == engine.max_context
    await asyncio.gather(
        *(families[name].generate(PROMPT, Sampling(max_tokens=1), request=name) for name in ["a", "b"] * 60)
    )
    assert most <= 3
    assert len(names) == 120
    assert 50 <= names[:90].count("a") <= 70
    assert (gate.num_inside, gate.num_waiting) == (0, 0)


async def test_a_cancelled_request_leaves_no_place_taken():
    engine = ScriptedEngine(lambda request: Reply([65], [-1.0], latency_s=60.0))
    gate = FairGate(1)
    generator = GatedGenerator(engine, gate, "a")
    requests = [asyncio.ensure_future(generator.generate(PROMPT, Sampling(max_tokens=1))) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert (engine.num_running, gate.num_waiting) == (1, 1)
    for request in requests:
        request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)
    assert (engine.num_running, gate.num_inside, gate.num_waiting) == (0, 0, 0)
