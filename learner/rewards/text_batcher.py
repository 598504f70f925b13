"""Rows of tokens from many requests, scored together in as few forward passes as there is room for."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...envs.loop_thread import LoopThread
from ...errors import RewardError, TurnGymError
from .scoring import TokenIds

ScoreRows = Callable[[Sequence[TokenIds]], NDArray[np.float64]]


@dataclass(frozen=True)
class _Waiting:
    token_ids: TokenIds
    score: "asyncio.Future[float]"


class TextBatcher:
    """First come, first served; what arrives while a forward pass runs waits for the next one. For one event loop.

    Args:
        score_rows: The forward pass; it runs in a thread of its own, one at a time.
        max_tokens: Most tokens in one; a longer row goes alone.
        max_rows: Most rows in one; None for any number.
    """

    def __init__(self, score_rows: ScoreRows, max_tokens: int, max_rows: int | None = None) -> None:
        self._score_rows = score_rows
        self._max_tokens = max_tokens
        self._max_rows = max_rows
        self._waiting: deque[_Waiting] = deque()
        self._thread = LoopThread("turngym-reward-model")
        self._drain_task: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        """Rows that no forward pass has taken yet."""
        return len(self._waiting)

    async def score(self, rows: Sequence[TokenIds]) -> list[float]:
        """Return one score per row; whoever is cancelled meanwhile takes its rows out of the queue.

        Raises:
            RewardError: The forward pass failed; that of other rows may not.
        """
        loop = asyncio.get_running_loop()
        mine = [_Waiting(row, loop.create_future()) for row in rows]
        self._waiting.extend(mine)
        if self._drain_task is None or self._drain_task.done():
            self._drain_task = loop.create_task(self._drain())
        return list(await asyncio.gather(*(each.score for each in mine)))

    async def _drain(self) -> None:
        while taken := self._take():
            try:
                scores = await asyncio.wrap_future(self._thread.submit(self._run([each.token_ids for each in taken])))
            except Exception as error:  # it becomes the answer of those who wait
                failure = error if isinstance(error, TurnGymError) else RewardError(f"the model failed: {error!r}")
                for each in taken:
                    if not each.score.done():
                        each.score.set_exception(failure)
                continue
            for each, score in zip(taken, scores, strict=True):
                if not each.score.done():
                    each.score.set_result(float(score))

    async def _run(self, rows: list[TokenIds]) -> NDArray[np.float64]:
        return self._score_rows(rows)

    def _take(self) -> list[_Waiting]:
        taken: list[_Waiting] = []
        room = self._max_tokens
        while self._waiting and len(taken) != self._max_rows:
            first = self._waiting[0]
            if first.score.done():  # nobody waits for it any more
                self._waiting.popleft()
                continue
            room -= len(first.token_ids)
            if taken and room < 0:
                break
            taken.append(self._waiting.popleft())
        return taken
