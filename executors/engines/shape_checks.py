"""Checks of what shapes a distribution; an engine does what a shape says, or refuses it as `RequestRefusedError`."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from ...agents.base import RequestRefusedError, Sampling
from ...agents.shape import Grammar, Shape
from ...errors import EngineDeadError, EngineError
from .probe import Probe, first_logprob

_GREEDY = Sampling(8, temperature=0.0)


async def check_top_logprobs(probe: Probe) -> AsyncIterator[str]:
    """The likeliest tokens are told where they are asked for, and only there."""
    prompt = probe.prompt(7)
    if (await probe.engine.generate(prompt, _GREEDY)).top is not None:
        yield "top logprobs came, and nobody asked for them"
    with suppress(RequestRefusedError):
        greedy = await probe.engine.generate(prompt, replace(_GREEDY, num_top_logprobs=3))
        top, length = greedy.top, len(greedy.token_ids)
        if top is None or top.token_ids.shape != (length, 3) or top.logprobs.shape != (length, 3):
            yield f"3 top logprobs of each of {length} tokens were wanted, got {None if top is None else top.logprobs}"
            return
        if (np.diff(top.logprobs, axis=1) > 0).any():
            yield f"the likeliest token must come first, got {top.logprobs.tolist()}"
        if (top.token_ids[:, 0] != greedy.token_ids).any():
            yield f"greedy sampled {greedy.token_ids.tolist()}, and the likeliest were {top.token_ids[:, 0].tolist()}"
        elif greedy.logprobs is not None and (abs(top.logprobs[:, 0] - greedy.logprobs) > probe.tolerance).any():
            yield f"the sampled tokens have logprobs {greedy.logprobs}, and the same tokens {top.logprobs[:, 0]} as top"


async def check_biases(probe: Probe) -> AsyncIterator[str]:
    """A token with a bias of 100 always comes, one with -100 never, and the logprobs tell."""
    prompt = probe.prompt(8)
    with suppress(RequestRefusedError):
        free = (await probe.ask(prompt, 1)).token_ids
        wanted = (int(free[0]) + 1) % probe.vocab_size if len(free) else 0
        pushed = Sampling(4, shape=Shape(logit_bias=((wanted, 100.0),)))
        for completion in await asyncio.gather(*(probe.engine.generate(prompt, pushed) for _ in range(4))):
            if (completion.token_ids != wanted).any():
                yield f"with a bias of 100 for token {wanted} came {completion.token_ids.tolist()}"
            elif completion.logprobs is not None and (abs(completion.logprobs) > 1e-3).any():
                yield f"with a bias of 100 every logprob is 0, got {completion.logprobs}; are they taken before it?"
        if len(free):
            shape = Shape(logit_bias=((int(free[0]), -100.0),))
            banned = await probe.engine.generate(prompt, replace(_GREEDY, shape=shape))
            if (banned.token_ids == free[0]).any():
                yield f"token {free[0]} came with a bias of -100: {banned.token_ids.tolist()}"


async def check_penalties(probe: Probe) -> AsyncIterator[str]:
    """A penalty of 2 lowers the logit of a token that came before by 2; nothing else happens to the distribution."""
    prompt = probe.prompt(9)
    one = int(prompt[0])
    biases = ((one, 100.0), ((one + 1) % probe.vocab_size, 100.0))  # nothing else comes: one logprob tells both
    with suppress(RequestRefusedError):
        free = await probe.engine.generate(prompt, Sampling(2, temperature=0.0, shape=Shape(logit_bias=biases)))
        for name, shape in (
            ("presence_penalty", Shape(logit_bias=biases, presence_penalty=2.0)),
            ("frequency_penalty", Shape(logit_bias=biases, frequency_penalty=2.0)),
        ):
            fined = await probe.engine.generate(prompt, Sampling(2, temperature=0.0, shape=shape))
            if len(free.token_ids) < 2 or len(fined.token_ids) < 2 or free.token_ids[0] != fined.token_ids[0]:
                yield f"{name} changed the first token, or ended it: {free.token_ids} became {fined.token_ids}"
                continue
            gap = _log_odds(first_logprob(free, 1), is_first=free.token_ids[1] == free.token_ids[0])
            came = _log_odds(first_logprob(fined, 1), is_first=fined.token_ids[1] == fined.token_ids[0])
            if max(abs(gap), abs(came)) < 6 and abs(gap - 2 - came) > 8 * probe.tolerance:  # beyond 6 float32 is coarse
                yield f"{name}=2 should lower the log-odds of a token that came from {gap:.3f} by 2, got {came:.3f}"


async def check_min_tokens(probe: Probe) -> AsyncIterator[str]:
    """No stop token comes before `min_tokens` others."""
    prompt = probe.prompt(3)
    free = (await probe.ask(prompt, 1)).token_ids
    if not len(free):
        return
    with suppress(RequestRefusedError):
        sampling = replace(_GREEDY, stop_token_ids=(int(free[0]),), shape=Shape(min_tokens=3))
        held = (await probe.engine.generate(prompt, sampling)).token_ids
        if len(held) < 3 or (held[:3] == free[0]).any():
            yield f"min_tokens=3 should hold stop token {free[0]} back for 3 tokens, got {held.tolist()}"


async def check_grammars(probe: Probe) -> AsyncIterator[str]:
    """A grammar is followed or refused; one that is none is an `EngineError` of that request alone."""
    prompt = probe.prompt(10)
    with suppress(RequestRefusedError):
        sampling = Sampling(8, shape=Shape(grammar=Grammar.choice(["a"])))
        tries = await asyncio.gather(*(probe.engine.generate(prompt, sampling) for _ in range(4)))
        if len({each.token_ids.tobytes() for each in tries}) > 1:
            yield f"one text was allowed, and 4 tries gave {[each.token_ids.tolist() for each in tries]}"
    for grammar in (Grammar.ebnf("root ::= ("), Grammar.json_schema({"type": "nothing"})):
        try:
            await probe.engine.generate(prompt, Sampling(8, shape=Shape(grammar=grammar)))
            yield f"{grammar.text!r} was answered, and is no grammar"
        except EngineDeadError as error:
            yield f"{grammar.text!r} raised EngineDeadError, wanted RequestRefusedError: {error}"
        except EngineError:
            pass
    await probe.ask(prompt, 1)


def _log_odds(logprob: float, *, is_first: bool) -> float:
    """Return the log-odds of the token that came first, of two that alone may come; from the logprob of either."""
    odds = logprob - math.log(max(-math.expm1(logprob), 1e-12))
    return odds if is_first else -odds
