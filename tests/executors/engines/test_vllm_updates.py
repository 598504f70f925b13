"""Weights that change under running requests of vLLM: every logprob is that of the weights its version names."""

import asyncio
import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from turngym.errors import DeadlineError, EngineError, WeightSyncError
from turngym.executors.engines import vllm as vllm_module
from turngym.executors.engines.base import UpdateMode

from .reference import Rig, ends_of, kept, recomputed

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.timeout(280), pytest.mark.asyncio(loop_scope="session")]

RNG = np.random.default_rng(0)
RECOMPUTE, KEEP, DRAIN = UpdateMode.RECOMPUTE, UpdateMode.KEEP, UpdateMode.DRAIN


async def test_drained_completions_have_one_version(rig):
    before = rig.engine.version
    running = [rig.ask(60) for _ in range(6)]  # two of them wait for a place
    await rig.sampled(20)
    await rig.update(DRAIN)
    for completion in [*await asyncio.gather(*running), await rig.ask(20)]:
        assert len(set(completion.versions.tolist())) == 1
        assert rig.distance(recomputed, completion) < rig.tolerance
    assert (await running[5]).versions[0] == before


@pytest.mark.parametrize(("mode", "reference", "other"), [(RECOMPUTE, recomputed, kept), (KEEP, kept, recomputed)])
async def test_each_token_is_of_the_weights_its_version_names(rig, mode, reference, other):
    before = rig.engine.version
    running = rig.ask(400)
    for least in (40, 200):
        await rig.sampled(least)
        await rig.update(mode)
    completion = await running
    assert len(completion.token_ids) == 400
    assert dict.fromkeys(completion.versions.tolist()).keys() == {before, before + 1, before + 2}
    assert np.all(np.diff(completion.versions) >= 0)
    assert rig.distance(reference, completion) < rig.tolerance
    # A test that would see spans that are off by one token, and that tells the modes apart.
    for shift in (-1, 1):
        assert rig.distance(reference, completion, shift=shift) > 5 * rig.tolerance
    assert rig.distance(other, completion) > 5 * rig.tolerance


async def test_preempted_and_waiting_requests_come_out_right(rig):
    """Four run with 3 blocks each, want 4 once they have 384 tokens, and there are 15: one is preempted; two wait."""
    if rig.on_gpu:
        pytest.skip("counts blocks of a CPU's size")
    before = rig.engine.version
    prompts = [RNG.integers(0, 256, 370 + index).astype(np.int32) for index in range(6)]
    running = [rig.ask(100, prompt) for prompt in prompts]
    await rig.sampled(40)
    counts = rig.engine._child.num_sampled()
    assert sorted(counts.values())[:2] == [0, 0]
    assert 0 < sorted(counts.values())[2] < 20  # it lost its place
    await rig.update(RECOMPUTE)
    completions = await asyncio.gather(*running)
    for prompt, completion in zip(prompts, completions, strict=True):
        assert rig.distance(recomputed, completion, prompt) < rig.tolerance
    assert [len(ends_of(completion.versions)) for completion in completions] == [1, 1, 1, 1, 0, 0]
    assert completions[5].versions[0] == before + 1


async def test_a_request_at_the_edge_of_the_pause(rig, monkeypatch):
    """Some are only on their way, some end within a few tokens, and what was sampled before comes late."""
    core = rig.engine._child._engine.engine_core
    get_output = core.get_output_async
    delays = [0.0]

    async def get_output_late():
        outputs = await get_output()
        await asyncio.sleep(delays.pop() if delays else 0.0)
        return outputs

    monkeypatch.setattr(core, "get_output_async", get_output_late)
    for mode in (RECOMPUTE, KEEP):
        before = rig.engine.version
        running = [rig.ask(200)]
        await rig.sampled(10)
        running += [rig.ask(num_tokens) for num_tokens in (1, 2, 3)]
        await asyncio.sleep(0)  # they are on their way now
        delays.append(0.3)
        await rig.update(mode)
        running += [rig.ask(4)]
        for completion in await asyncio.gather(*running):
            reference = kept if mode is KEEP else recomputed
            assert rig.distance(reference, completion) < rig.tolerance
            assert set(completion.versions.tolist()) <= {before, before + 1}
        assert set((await running[-1]).versions.tolist()) == {before + 1}


async def test_cancelled_requests_leave_nothing(rig):
    running = [rig.ask(300) for _ in range(6)]
    await rig.sampled(5)
    await rig.engine.pause(KEEP)
    held = rig.ask(3)
    on_its_way = rig.ask(3)
    await asyncio.sleep(0.01)
    for task in (*running[1:], held, on_its_way):
        task.cancel()
    await asyncio.gather(*running[1:], held, on_its_way, return_exceptions=True)
    assert len(rig.engine._running) == 1
    assert len(rig.engine._child.num_sampled()) == 1
    await rig.engine.resume()
    last = rig.ask(300)
    await asyncio.sleep(0)
    last.cancel()  # between being taken and being sent
    await asyncio.gather(last, return_exceptions=True)
    assert rig.distance(recomputed, await running[0]) < rig.tolerance
    assert not rig.engine._running
    assert not rig.engine._child.num_sampled()


async def test_keys_and_values_of_older_weights_are_never_used(rig, monkeypatch):
    """A prefix of two and a half blocks, shared over updates, while a request with it runs all the time."""
    prefix = RNG.integers(0, 256, 320).astype(np.int32)

    async def worst() -> float:
        running = rig.ask(rig.engine.max_context - len(prefix), prefix)
        await rig.sampled(5)
        distances = []
        for index in range(4):
            await rig.update(KEEP)
            prompt = np.concatenate([prefix, [index]]).astype(np.int32)
            for _ in range(2):  # the second finds the first one's
                distances.append(rig.distance(recomputed, await rig.ask(4, prompt), prompt))
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return max(distances)

    assert await worst() < rig.tolerance
    salted = vllm_module.prompt_of
    monkeypatch.setattr(vllm_module, "prompt_of", lambda ids, salt, images: salted(ids, "one for all", images))
    assert await worst() > 5 * rig.tolerance  # what the salt keeps away


@pytest.mark.soak
async def test_twenty_updates_under_one_system_prompt_of_a_thousand_tokens(endless_model):
    """R41: one request per step and what a fresh engine would say; in every other step one runs over the update."""
    rig = Rig(endless_model, max_context=1024, kv_cache_gib=0.008)
    prompt = RNG.integers(0, 256, 1000).astype(np.int32)
    long_prompt = prompt[:700]
    await rig.engine.start()
    try:
        for step in range(20):
            running = rig.ask(200, long_prompt) if step % 2 else None
            if running is not None:
                await rig.sampled(5)
            await rig.engine.pause(KEEP)
            model = copy.deepcopy(rig.models[0])
            with torch.no_grad():
                for number, parameter in enumerate(model.parameters()):
                    parameter.mul_(0.8 + 0.4 * float(np.random.default_rng([step, number]).random()))
            await rig.send(model)
            await rig.engine.resume()
            for _ in range(2):  # the second finds the first one's
                completion = await rig.ask(8, prompt)
                assert set(completion.versions.tolist()) == {step + 1}
                assert rig.distance(recomputed, completion, prompt) < rig.tolerance
            if running is not None:
                assert not running.done()
                completion = await running
                assert set(completion.versions.tolist()) == {step, step + 1}
                assert rig.distance(kept, completion, long_prompt) < rig.tolerance
    finally:
        await rig.engine.close()


async def test_scores_are_of_one_set_of_weights(rig):
    """Scores that are interrupted begin anew."""
    ids = RNG.integers(0, 256, 600).astype(np.int32)
    for mode in (RECOMPUTE, KEEP):
        running = rig.ask(100)
        await rig.sampled(5)
        scores = [asyncio.create_task(rig.engine.score(ids)) for _ in range(6)]
        await asyncio.sleep(0)
        await rig.update(mode)
        news = recomputed([rig.models[-1]], [], ids[:1], ids[1:])
        olds = recomputed([rig.models[-2]], [], ids[:1], ids[1:])
        found = [min(np.abs(s[1:] - news).max(), np.abs(s[1:] - olds).max()) for s in await asyncio.gather(*scores)]
        assert max(found) < rig.tolerance
        await running


async def test_an_update_out_of_order_is_an_error(rig):
    with pytest.raises(WeightSyncError, match="call pause"):
        await rig.engine.begin_update()
    running = rig.ask(200)
    await rig.sampled(5)
    await rig.engine.pause(KEEP)
    with pytest.raises(EngineError, match="1 requests are held by an earlier pause"):
        await rig.engine.pause(DRAIN)
    await rig.engine.pause(RECOMPUTE)
    await rig.engine.begin_update()
    with pytest.raises(WeightSyncError, match="begun and not finished"):
        await rig.engine.resume()
    await rig.send(rig.models[-1])  # the same weights, under a new version
    await rig.engine.resume()
    assert rig.distance(recomputed, await running) < rig.tolerance


async def test_a_drain_has_a_deadline(rig, monkeypatch):
    running = rig.ask(600)
    await rig.sampled(5)
    monkeypatch.setattr(rig.engine, "_config", replace(rig.engine._config, drain_timeout_s=0.05))
    with pytest.raises(DeadlineError, match=r"running requests to finish took longer than 0\.05 s"):
        await rig.engine.pause()
    monkeypatch.undo()
    assert len((await rig.ask(3)).token_ids) == 3  # it goes on
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
