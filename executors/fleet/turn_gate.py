"""Where a schedule is followed: in a rollout actor, each turn waits for the version that sampled it in another run."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Completion, Generator, Sampling
from ...agents.images import Images
from ...errors import ScheduleError
from ..rollouts.schedule import GroupRecord, not_followed

Left = dict[tuple[int, int], int]
"""From attempt and turn to the version that is to sample it."""


@dataclass(frozen=True)
class ScheduledTurns:
    """What an order of a run that follows a schedule did in the run that wrote it."""

    key: int  # of the order
    step: int  # that took the group
    group: GroupRecord


class TurnGate:
    """Lets each turn through at its version, and knows which turns an update has to wait for.

    An update that came too early could never be made up for: nothing samples under older weights again.
    """

    def __init__(self) -> None:
        self.version = 0
        self._left: dict[int, Left] = {}  # by the key of the order; empty once it ended
        self._error: str | None = None  # the first turn that could not be let through
        self._changed = asyncio.Event()

    def publish(self, version: int) -> None:
        """Take note of the version that samples from now on."""
        self.version = version
        self._wake()

    @contextmanager
    def following(self, turns: ScheduledTurns, attempts: Iterable[int]) -> Iterator[None]:
        """Know of an order's turns as long as it runs.

        Raises:
            ScheduleError: A turn could not be let through; its episode took that for a failure of its own.
        """
        self._left[turns.key] = {
            (attempt, turn): version for attempt in attempts for turn, version in enumerate(turns.group.turns[attempt])
        }
        self._wake()
        try:
            yield
            self._check()
        finally:
            self._left[turns.key] = {}
            self._wake()

    async def unfinished(self, version: int, keys: Sequence[int], wait_s: float) -> list[str]:
        """Return which turns of these orders are still to be sampled at `version` or before.

        Args:
            version: The published one, which is to be followed by the next.
            keys: Of orders, also of those that have not come yet.
            wait_s: How long to wait for an empty list.

        Raises:
            ScheduleError: A turn could not be let through.
        """
        try:
            async with asyncio.timeout(wait_s):
                while self._error is None and self._due(version, keys):
                    await self._changed.wait()
        except TimeoutError:
            pass
        self._check()
        return self._due(version, keys)

    async def reach(self, version: int) -> None:
        """Wait until this version or a later one is published.

        Raises:
            ScheduleError: A turn could not be let through: no update comes any more.
        """
        while self.version < version:
            self._check()
            await self._changed.wait()

    def done(self, key: int, attempt: int, turn: int) -> None:
        """Take note that a turn was sampled."""
        self._left[key].pop((attempt, turn), None)
        self._wake()

    def ended(self, key: int, attempt: int) -> None:
        """Take note that an attempt samples nothing more."""
        self._left[key] = {name: version for name, version in self._left[key].items() if name[0] != attempt}
        self._wake()

    def fail(self, message: str) -> None:
        """Take note that the schedule cannot be followed."""
        self._error = self._error or message
        self._wake()

    def _check(self) -> None:
        if self._error is not None:
            raise ScheduleError(self._error)

    def _due(self, version: int, keys: Sequence[int]) -> list[str]:
        found = [f"order {key}, which has not come yet" for key in keys if key not in self._left]
        for key in keys:
            due = [name for name, at in self._left.get(key, {}).items() if at <= version]
            found += [f"turn {turn} of attempt {attempt} of order {key}" for attempt, turn in due]
        return found

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class ScheduledSeat:
    """The generator of one attempt; as a context manager it is entered when the attempt begins and left at its end.

    Args:
        gate: Lets turns through.
        own: The engine.
        turns: Of the attempt's order.
        attempt: Its number.
        turn_of_seed: From the seed that full determinism gives each request to its turn.
    """

    def __init__(
        self, gate: TurnGate, own: Generator, turns: ScheduledTurns, attempt: int, turn_of_seed: Mapping[int, int]
    ) -> None:
        self._gate, self._own, self._turns, self._attempt = gate, own, turns, attempt
        self._turn_of_seed = turn_of_seed

    @property
    def max_context(self) -> int:
        """Most tokens of prompt and completion together."""
        return self._own.max_context

    async def generate(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, images: Images | None = None, request: str = ""
    ) -> Completion:
        """Sample one completion at the version that sampled it then; see `Generator`."""
        versions = self._turns.group.turns[self._attempt]
        turn = None if sampling.seed is None else self._turn_of_seed.get(sampling.seed)
        if turn is None and self._attempt in self._turns.group.failed:
            # Then nothing came of this turn, or of one before. What comes of it now is looked at in the end.
            return await self._own.generate(prompt_ids, sampling, images, request)
        if turn is None:
            raise self._error(len(versions), f"the episode ended after {len(versions)} turns then, and goes on now")
        version = versions[turn]
        await self._gate.reach(version)
        if self._gate.version > version:
            raise self._error(turn, f"version {version} sampled it then, and {self._gate.version} is published now")
        completion = await self._own.generate(prompt_ids, sampling, images, request)
        if (completion.versions != version).any():
            raise self._error(turn, f"version {version} sampled it then, and {set(completion.versions.tolist())} now")
        self._gate.done(self._turns.key, self._attempt, turn)
        return completion

    def __enter__(self) -> "ScheduledSeat":
        return self

    def __exit__(self, *exception: object) -> None:
        self._gate.ended(self._turns.key, self._attempt)

    def _error(self, turn: int, why: str) -> ScheduleError:
        message = not_followed(self._turns.step, self._turns.group.serial, self._attempt, turn, why)
        self._gate.fail(message)
        return ScheduleError(message)
