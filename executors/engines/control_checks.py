"""Checks of many requests at once, of pauses, updates and the end; each yields what is wrong."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np

from ...agents.base import Completion
from ...errors import EngineDeadError
from .probe import Probe


async def check_concurrency(probe: Probe) -> AsyncIterator[str]:
    """64 requests at once are all answered, each with its own answer."""
    count, alone = 64, 8
    solo = [await probe.ask(probe.prompt(100 + index), 1) for index in range(alone)]
    answers = await asyncio.gather(*(probe.ask(probe.prompt(100 + i), 1 + i % 4) for i in range(count)))
    for i, answer in enumerate(answers):
        if len(answer.token_ids) > 1 + i % 4:
            yield f"request {i} wanted at most {1 + i % 4} tokens and got {len(answer.token_ids)}"
    # Near-ties may fall otherwise in a larger batch, so that a few may differ in their token.
    same = sum(np.array_equal(s.token_ids[:1], a.token_ids[:1]) for s, a in zip(solo, answers, strict=False))
    if same < alone - 2:
        yield f"only {same} of {alone} requests got the same first token among others as alone; mixed up?"


async def check_cancellation(probe: Probe) -> AsyncIterator[str]:
    """A cancelled request ends, and the others do not notice."""
    wanted = await asyncio.gather(*(probe.ask(probe.prompt(200 + index), 24) for index in range(1, 8, 2)))
    tasks = [asyncio.ensure_future(probe.ask(probe.prompt(200 + index), 24)) for index in range(8)]
    await asyncio.sleep(0.02)
    for task in tasks[::2]:
        task.cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    for answer, before in zip(answers[1::2], wanted, strict=True):
        if not isinstance(answer, Completion):
            yield f"a neighbour of a cancelled request failed: {answer!r}"
        elif len(answer.token_ids) != len(before.token_ids):
            yield f"beside a cancelled request {len(answer.token_ids)} of {len(before.token_ids)} tokens came"
    await probe.engine.pause()  # never returns where a cancelled request still counts as running
    await probe.engine.resume()


async def check_pausing(probe: Probe) -> AsyncIterator[str]:
    """`pause` lets running requests finish and holds new ones; `resume` admits them."""
    running = [asyncio.ensure_future(probe.ask(probe.prompt(300 + index), 16)) for index in range(4)]
    await asyncio.sleep(0.05)
    await probe.engine.pause()
    held = asyncio.ensure_future(probe.ask(probe.prompt(304), 1))
    done, late = await asyncio.wait(running, timeout=probe.timeout_s / 4)
    for task in done:
        if (error := task.exception()) is not None:
            yield f"a running request failed in the pause: {error!r}"
    for task in late:
        task.cancel()
        yield "a request that ran before the pause did not finish"
    await asyncio.wait([held], timeout=probe.hold_s)
    if held.done():
        outcome = held.exception() or "an answer"
        yield f"a request that came during the pause was not held; it got {outcome!r}"
    await probe.engine.resume()
    await held


async def check_update(probe: Probe) -> AsyncIterator[str]:
    """An update loads what was sent, and its version stamps every token from then on."""
    engine = probe.engine
    version = engine.version + 1
    await engine.pause()
    try:
        await engine.begin_update()
        for index, bucket in enumerate(probe.buckets):
            if (came := await engine.load_bucket(bucket)) != bucket.checksum:
                yield f"bucket {index} was sent with checksum {bucket.checksum} and arrived with {came}"
        await engine.finish_update(version)
    finally:
        await engine.resume()
    if engine.version != version:
        yield f"after finish_update({version}) the engine is at version {engine.version}"
    completion = await probe.ask(probe.prompt(7), 4)
    if (completion.versions != version).any():
        yield f"tokens sampled at version {version} carry {np.unique(completion.versions).tolist()}"


async def check_closing(probe: Probe) -> AsyncIterator[str]:
    """`close` may be called twice, and then nothing is answered."""
    await probe.engine.close()
    await probe.engine.close()
    calls: tuple[tuple[str, Callable[[], Awaitable[object]]], ...] = (
        ("health", probe.engine.health),
        ("generate", lambda: probe.ask(probe.prompt(8), 1)),
        ("score", lambda: probe.engine.score(probe.prompt(8))),
    )
    for name, call in calls:
        try:
            await call()
            yield f"{name} worked after close; wanted EngineDeadError"
        except EngineDeadError:
            pass
