"""Checks of what an engine samples and what it says about it; each yields what is wrong."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Sampling, StopReason
from ...errors import EngineDeadError, EngineError
from .probe import Probe, first_logprob


async def check_records(probe: Probe) -> AsyncIterator[str]:
    """One logprob and one version per token, ids in the vocabulary."""
    await probe.engine.health()
    for completion in [await probe.ask(probe.prompt(0), 8), await probe.ask(probe.prompt(1), 8, 1.0)]:
        if completion.logprobs is None:
            yield "no logprobs came; such an engine cannot be trained with"
            return
        if (completion.logprobs > 0).any():
            yield f"logprobs must not be greater than 0, got {completion.logprobs.max()}"
        ids = completion.token_ids
        if len(ids) and (ids.min() < 0 or ids.max() >= probe.vocab_size):
            yield f"ids must lie in [0, {probe.vocab_size}), got {ids.min()} to {ids.max()}"
        if (completion.versions != probe.engine.version).any():
            yield f"versions must be {probe.engine.version}, got {np.unique(completion.versions).tolist()}"
        for array, dtype in (("token_ids", "int32"), ("logprobs", "float32"), ("versions", "int32")):
            if (came := getattr(completion, array).dtype) != dtype:
                yield f"{array} must be {dtype}, got {came}"


async def check_tokens_in(probe: Probe) -> AsyncIterator[str]:
    """The prompt's ids are used as they are: going on from sampled ids is the same as having gone on."""
    prompt = probe.prompt(2)
    whole = await probe.ask(prompt, 8)
    first = first_logprob(await probe.ask(probe.prompt(2, 11), 1))
    for cut in range(1, len(whole.token_ids)):
        rest = await probe.ask(np.concatenate([prompt, whole.token_ids[:cut]]), 1)
        if abs(first_logprob(rest) - first_logprob(whole, cut)) > probe.tolerance:
            yield (
                f"after its own {cut} tokens the next one has logprob {first_logprob(rest):.4f}, and had "
                f"{first_logprob(whole, cut):.4f}; are ids decoded and encoded again?"
            )
    if len(whole.token_ids) and first == first_logprob(whole):
        yield "leaving out the prompt's last id changes nothing; is the prompt used?"


async def check_limits(probe: Probe) -> AsyncIterator[str]:
    """`max_tokens` and `stop_token_ids` are kept, and the stop reason tells which."""
    short, longer = [await probe.ask(probe.prompt(3), max_tokens) for max_tokens in (1, 5)]
    for max_tokens, completion in ((1, short), (5, longer)):
        length, reason = len(completion.token_ids), completion.stop_reason
        if length > max_tokens or (reason is StopReason.LENGTH and length < max_tokens):
            yield f"max_tokens={max_tokens} gave {length} tokens and stop reason {reason.value!r}"
    if short.stop_reason is StopReason.STOP and len(longer.token_ids) > 1:
        yield f"stop reason 'stop' after the first token, and with max_tokens=5 there are {len(longer.token_ids)}"
    free = (await probe.ask(probe.prompt(3), 8)).token_ids
    if len(free) == 0:
        yield "a greedy completion of 8 tokens came back empty"
        return
    stop = int(free[len(free) // 2])
    end = int(np.flatnonzero(free == stop)[0]) + 1
    stopped = await probe.engine.generate(probe.prompt(3), Sampling(8, temperature=0.0, stop_token_ids=(stop,)))
    if not np.array_equal(stopped.token_ids, free[:end]) or stopped.stop_reason is not StopReason.STOP:
        yield (
            f"stop_token_ids=({stop},) should end {free.tolist()} after {end} tokens as 'stop', got "
            f"{stopped.token_ids.tolist()} and {stopped.stop_reason.value!r}"
        )


async def check_randomness(probe: Probe) -> AsyncIterator[str]:
    """Greedy repeats itself; attempts at temperature 1 differ; equal seeds give equal tokens."""
    prompt = probe.prompt(4)
    greedy = [await probe.ask(prompt, 8) for _ in range(2)]
    if not np.array_equal(greedy[0].token_ids, greedy[1].token_ids):
        yield f"greedy gave {greedy[0].token_ids.tolist()}, then {greedy[1].token_ids.tolist()}"
    attempts = await asyncio.gather(*(probe.ask(prompt, 16, 1.0) for _ in range(8)))
    if len({attempt.token_ids.tobytes() for attempt in attempts}) == 1:
        yield "8 attempts at temperature 1 are all the same"
    seeded = Sampling(16, seed=7)
    repeats = [await probe.engine.generate(prompt, seeded) for _ in range(2)]
    other = await probe.engine.generate(prompt, replace(seeded, seed=8))
    if not np.array_equal(repeats[0].token_ids, repeats[1].token_ids):
        yield "one seed gave two different completions"
    if np.array_equal(repeats[0].token_ids, other.token_ids):
        yield "two seeds gave one completion"


async def check_distribution(probe: Probe) -> AsyncIterator[str]:
    """Logprobs are of the distribution sampled from: temperature and top-k are in them."""
    prompt = probe.prompt(5)
    only = await probe.engine.generate(prompt, Sampling(4, temperature=1.0, top_k=1))
    if only.logprobs is not None and (abs(only.logprobs) > 1e-3).any():
        yield f"with top_k=1 every logprob is 0, got {only.logprobs.tolist()}; are they taken before top-k?"
    plain = await _logprob_by_token(probe, prompt, 1.0)
    cold = await _logprob_by_token(probe, prompt, 0.5)
    if (total := sum(np.exp(list(plain.values())))) > 1 + len(plain) * probe.tolerance:
        yield f"the probabilities of {len(plain)} different tokens sum to {total:.3f}"
    greedy = await probe.ask(prompt, 1)
    if len(greedy.token_ids) and (known := plain.get(int(greedy.token_ids[0]))) is not None:
        came = first_logprob(greedy)
        if abs(came - known) > probe.tolerance:
            yield f"the greedy token has logprob {came:.4f}, and {known:.4f} at temperature 1; wanted equal"
    both = sorted(plain.keys() & cold.keys(), key=plain.__getitem__)
    if len(both) >= 2:
        low, high = both[0], both[-1]
        wanted, came = 2 * (plain[high] - plain[low]), cold[high] - cold[low]
        if abs(wanted - came) > 4 * probe.tolerance:
            yield (
                f"at temperature 0.5 two tokens' logprobs should lie {wanted:.3f} apart, twice as far as at 1, "
                f"got {came:.3f}; are they taken before the temperature?"
            )


async def check_too_long(probe: Probe) -> AsyncIterator[str]:
    """A prompt that leaves no room is an `EngineError` of that request alone."""
    try:
        await probe.ask(probe.prompt(6, probe.engine.max_context), 1)
        yield f"a prompt of max_context={probe.engine.max_context} tokens was answered; wanted EngineError"
    except EngineDeadError as error:
        yield f"a prompt that is too long raised EngineDeadError, wanted EngineError: {error}"
    except EngineError:
        pass
    await probe.ask(probe.prompt(6), 1)


async def _logprob_by_token(probe: Probe, prompt: NDArray[np.int32], temperature: float) -> dict[int, float]:
    answers = await asyncio.gather(*(probe.ask(prompt, 1, temperature) for _ in range(64)))
    return {int(a.token_ids[0]): first_logprob(a) for a in answers if len(a.token_ids)}
