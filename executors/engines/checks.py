"""What every engine must do, as checks that anyone can run against theirs: `await check_engine(engine, ...)`.

Nothing is known of the model but its vocabulary's size: what an engine says is compared with what it
says elsewhere.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from . import control_checks as control
from . import sampling_checks as sampling
from . import scoring_checks as scoring
from . import shape_checks as shape
from .base import Engine
from .probe import Probe
from .weights import Bucket


@dataclass(frozen=True)
class Problem:
    """A check that an engine failed."""

    check: str
    message: str


CHECKS: list[Callable[[Probe], AsyncIterator[str]]] = [
    sampling.check_records,
    sampling.check_tokens_in,
    sampling.check_limits,
    sampling.check_randomness,
    sampling.check_distribution,
    sampling.check_too_long,
    shape.check_top_logprobs,
    shape.check_biases,
    shape.check_penalties,
    shape.check_min_tokens,
    shape.check_grammars,
    scoring.check_scores,
    scoring.check_scores_together,
    scoring.check_unscorable,
    control.check_concurrency,
    control.check_cancellation,
    control.check_pausing,
    control.check_update,
    control.check_recompute,
    control.check_keep,
]


async def check_engine(
    engine: Engine,
    *,
    vocab_size: int,
    buckets: Sequence[Bucket] = (),
    tolerance: float = 0.05,
    timeout_s: float = 60.0,
    hold_s: float = 0.5,
    closes: bool = True,
) -> list[Problem]:
    """Run all checks and return what is wrong; an empty list means that the engine keeps its contract.

    Args:
        engine: Started, and not in use by anyone else.
        vocab_size: Ids below it must all be allowed in prompts.
        buckets: Weights to load in the update check; without any the update is empty.
        tolerance: Of logprobs; 0.05 suits bfloat16.
        timeout_s: Deadline of each check.
        hold_s: How long to see that a paused engine holds a request.
        closes: Whether to close the engine, as the last check.
    """
    probe = Probe(engine, vocab_size, buckets, tolerance, timeout_s, hold_s)
    checks = [*CHECKS, control.check_closing] if closes else CHECKS
    problems: list[Problem] = []
    for check in checks:
        name = check.__name__.removeprefix("check_")
        try:
            async with asyncio.timeout(timeout_s):
                async for message in check(probe):
                    problems.append(Problem(name, message))
        except Exception as error:  # whatever an engine raises where it must not is what is looked for
            message = f"{type(error).__name__}: {str(error) or f'not done within {timeout_s} s'}"
            problems.append(Problem(name, message))
    return problems
