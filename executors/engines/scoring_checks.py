"""Checks of what an engine says of given tokens; each yields what is wrong."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
from numpy.typing import NDArray

from ...errors import EngineDeadError, EngineError
from .probe import Probe


async def check_scores(probe: Probe) -> AsyncIterator[str]:
    """`score` gives each token after the first the logprob that it was sampled with, at every asking."""
    prompt = probe.prompt(400, min(160, probe.engine.max_context - 9))  # longer than a block of cached keys, of 128
    said = await probe.ask(prompt, 8)
    whole = np.concatenate([prompt, said.token_ids])
    scores = await probe.engine.score(whole, "check")
    if scores.shape != whole.shape or scores.dtype != np.float32:
        yield f"scores of {len(whole)} tokens must be float32 of that length, got {scores.dtype} {scores.shape}"
        return
    if not np.isnan(scores[0]):
        yield f"the first token is predicted by nothing; its score must be NaN, got {scores[0]}"
    if not (scores[1:] <= 0).all() or np.isinf(scores).any():
        yield "scores after the first must be finite and not greater than 0"
    again = await probe.engine.score(whole, "check")
    if again.shape != scores.shape or not np.allclose(scores[1:], again[1:], atol=probe.tolerance):
        yield "the same tokens scored twice differ; does a prefix cache take part?"
    sampled = said.logprobs if probe.engine.scoring_temperature == 1.0 else None  # greedy counts as temperature 1
    if sampled is not None and not np.allclose(scores[len(prompt) :], sampled, atol=probe.tolerance):
        yield f"scores {scores[len(prompt) :]} of tokens that were sampled with logprobs {sampled}; wanted equal"
    if (scores[1:] == scores[1]).all():
        yield "all tokens score alike; are the tokens used?"


async def check_scores_together(probe: Probe) -> AsyncIterator[str]:
    """Sequences of all lengths scored at once get the scores that they get alone."""
    sequences = [_mixed(probe, index) for index in range(32)]
    together = await asyncio.gather(*(probe.engine.score(ids, "check") for ids in sequences))
    for index in range(0, len(sequences), 4):
        alone = await probe.engine.score(sequences[index], "check")
        if alone.shape != together[index].shape or not np.allclose(
            alone[1:], together[index][1:], atol=probe.tolerance
        ):
            yield f"sequence {index} of {len(alone)} tokens scores otherwise among others than alone; mixed up?"


async def check_unscorable(probe: Probe) -> AsyncIterator[str]:
    """Sequences too short or too long are an `EngineError` of that request alone."""
    for length in (0, 1, probe.engine.max_context):
        try:
            await probe.engine.score(probe.prompt(402, length), "check")
            yield f"a sequence of {length} tokens was scored; wanted EngineError"
        except EngineDeadError as error:
            yield f"a sequence of {length} tokens raised EngineDeadError, wanted EngineError: {error}"
        except EngineError:
            pass
    longest = probe.engine.max_context - 1
    if len(scores := await probe.engine.score(probe.prompt(403, longest), "check")) != longest:
        yield f"the longest sequence of {longest} tokens got {len(scores)} scores"


def _mixed(probe: Probe, index: int) -> NDArray[np.int32]:
    """Return ids of one of many lengths; all begin alike, so that a cache would find them."""
    length = min(2 + 5 * index, probe.engine.max_context - 1)
    start = probe.prompt(401, length)
    start[length // 2 :] = probe.prompt(500 + index, length - length // 2)
    return start
