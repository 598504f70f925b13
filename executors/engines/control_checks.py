"""Checks of many requests at once, of pauses, updates and the end; each yields what is wrong."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np

from ...agents.base import Completion
from ...errors import EngineDeadError
from .base import UpdateMode
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
    version = probe.engine.version + 1
    await probe.engine.pause()
    async for problem in _update(probe, version):
        yield problem
    await probe.engine.resume()
    if probe.engine.version != version:
        yield f"after finish_update({version}) the engine is at version {probe.engine.version}"
    completion = await probe.ask(probe.prompt(7), 4)
    if (completion.versions != version).any():
        yield f"tokens sampled at version {version} carry {np.unique(completion.versions).tolist()}"


async def check_recompute(probe: Probe) -> AsyncIterator[str]:
    """With `UpdateMode.RECOMPUTE` running requests stay, and each token has the version that sampled it."""
    async for problem in _update_midway(probe, UpdateMode.RECOMPUTE):
        yield problem


async def check_keep(probe: Probe) -> AsyncIterator[str]:
    """The same with `UpdateMode.KEEP`."""
    async for problem in _update_midway(probe, UpdateMode.KEEP):
        yield problem


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


async def _update_midway(probe: Probe, mode: UpdateMode) -> AsyncIterator[str]:
    """Load the same weights twice while requests run, and compare with completions that nothing disturbed."""
    engine, before = probe.engine, probe.engine.version
    num_tokens = engine.max_context - len(probe.prompt(0))  # what is sampled must outlast both pauses
    undisturbed = await asyncio.gather(*(probe.ask(probe.prompt(600 + i), num_tokens) for i in range(4)))
    running = [asyncio.ensure_future(probe.ask(probe.prompt(600 + i), num_tokens)) for i in range(4)]
    for version in (before + 1, before + 2):
        await asyncio.sleep(0.05)
        await engine.pause(mode)
        if all(task.done() for task in running):
            yield f"pause({mode.value!r}) let all running requests of {num_tokens} tokens finish; they must stay"
        held = asyncio.ensure_future(probe.ask(probe.prompt(604), 1))
        await asyncio.wait([held], timeout=probe.hold_s)
        if held.done():
            yield f"a request that came during pause({mode.value!r}) was not held"
        async for problem in _update(probe, version):
            yield problem
        await engine.resume()
        if ((late := await held).versions != version).any():
            yield f"a request held over the update to version {version} carries {np.unique(late.versions).tolist()}"
    spanning = 0
    for index, (answer, alone) in enumerate(zip(await asyncio.gather(*running), undisturbed, strict=True)):
        versions = answer.versions.tolist()
        spanning += versions[-1:] != versions[:1]
        if sorted(versions) != versions or not set(versions) <= {before, before + 1, before + 2}:
            yield f"versions went {_runs(versions)} over updates to {before + 1} and {before + 2}"
        if len(versions) != len(alone.token_ids):
            yield f"request {index} gave {len(versions)} tokens over updates, and {len(alone.token_ids)} without"
        same = int(np.cumprod(answer.token_ids[: len(versions)] == alone.token_ids[: len(versions)]).sum())
        if answer.logprobs is not None and alone.logprobs is not None and len(versions) == len(alone.token_ids):
            apart = np.abs(answer.logprobs[:same] - alone.logprobs[:same]).max(initial=0.0)
            if apart > probe.tolerance:
                yield f"updates with the same weights moved the logprobs of request {index} by {apart:.4f}"
    if not spanning:
        yield f"no completion of {num_tokens} tokens has more than one version; updates came while they ran"


async def _update(probe: Probe, version: int) -> AsyncIterator[str]:
    """Send the probe's weights to the paused engine."""
    await probe.engine.begin_update()
    for index, bucket in enumerate(probe.buckets):
        if (came := await probe.engine.load_bucket(bucket)) != bucket.checksum:
            yield f"bucket {index} was sent with checksum {bucket.checksum} and arrived with {came}"
    await probe.engine.finish_update(version)


def _runs(versions: list[int]) -> str:
    """Return versions as `3 x 0, 5 x 1`."""
    return ", ".join(f"{len(list(run))} x {version}" for version, run in itertools.groupby(versions))
