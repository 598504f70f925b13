"""Rows of many requests in few forward passes."""

import asyncio
import threading
import time

import numpy as np
import pytest

from turngym.errors import RewardError
from turngym.learner.rewards.text_batcher import TextBatcher


class Scorer:
    """Scores a row by its first token; keeps the passes, and holds the first until it is let go."""

    def __init__(self) -> None:
        self.passes: list[list[int]] = []
        self.go = threading.Event()

    def __call__(self, rows) -> np.ndarray:
        self.passes.append([int(row[0]) for row in rows])
        assert self.go.wait(10)
        if any(row[0] == 13 for row in rows):
            raise ValueError("out of luck")
        return np.array([float(row[0]) for row in rows])


def row(first: int, length: int = 1) -> np.ndarray:
    return np.full(length, first, np.int32)


async def started(scorer: Scorer, batcher: TextBatcher) -> "asyncio.Task[list[float]]":
    """Ask for row 0 and wait until its pass runs, so that what comes next has to wait."""
    task = asyncio.create_task(batcher.score([row(0)]))
    until = time.monotonic() + 10
    while not scorer.passes and time.monotonic() < until:
        await asyncio.sleep(0.001)
    return task


async def test_what_waits_shares_the_next_pass_up_to_the_token_budget():
    scorer = Scorer()
    batcher = TextBatcher(scorer, max_tokens=10)
    first = await started(scorer, batcher)
    others = [
        asyncio.create_task(batcher.score(rows))
        for rows in ([row(1, 4), row(2, 4)], [row(3, 2)], [row(4, 1), row(5, 50)], [row(6, 10)], [row(7)], [])
    ]
    await asyncio.sleep(0)
    assert batcher.num_waiting == 7
    scorer.go.set()
    assert await first == [0]
    assert await asyncio.gather(*others) == [[1, 2], [3], [4, 5], [6], [7], []]
    assert scorer.passes == [[0], [1, 2, 3], [4], [5], [6], [7]]
    assert batcher.num_waiting == 0


async def test_at_most_so_many_rows_in_a_pass():
    scorer = Scorer()
    scorer.go.set()
    batcher = TextBatcher(scorer, max_tokens=100, max_rows=2)
    assert await batcher.score([row(n) for n in range(5)]) == [0, 1, 2, 3, 4]
    assert scorer.passes == [[0, 1], [2, 3], [4]]
    assert await batcher.score([row(8)]) == [8]  # and it can be asked again


async def test_a_pass_that_fails_fails_those_in_it_only():
    scorer = Scorer()
    batcher = TextBatcher(scorer, max_tokens=2)
    first = await started(scorer, batcher)
    bad, good = asyncio.create_task(batcher.score([row(13, 2)])), asyncio.create_task(batcher.score([row(2)]))
    await asyncio.sleep(0)
    scorer.go.set()
    assert await asyncio.gather(first, good) == [[0], [2]]
    with pytest.raises(RewardError, match="out of luck"):
        await bad


async def test_rows_that_nobody_waits_for_are_not_scored():
    scorer = Scorer()
    batcher = TextBatcher(scorer, max_tokens=10)
    first = await started(scorer, batcher)
    given_up, kept = asyncio.create_task(batcher.score([row(1)])), asyncio.create_task(batcher.score([row(2)]))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(0)
    scorer.go.set()
    assert await asyncio.gather(first, kept) == [[0], [2]]
    assert scorer.passes == [[0], [2]]
