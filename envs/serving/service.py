"""One environment for many clients: its sessions and its tasks, whichever protocol asks for them."""

import secrets
from collections.abc import Sequence
from functools import lru_cache

from ...errors import EnvUnavailableError
from ..daemon_threads import DaemonThreads
from ..factory import EnvFactory
from ..task import Split, Task
from .leases import Leases
from .limits import ServeLimits
from .session import MAX_THREADS, Session
from .wire import BadRequestError, Json, action_of


class EnvService:
    """The sessions of one environment, and its tasks.

    Args:
        factory: Makes the environment.
        limits: How it guards itself.
        tasks: In place of the environment's own, for both splits.
    """

    def __init__(self, factory: EnvFactory, limits: ServeLimits, tasks: Sequence[Task] | None = None) -> None:
        self.factory = factory
        self.limits = limits
        self.sessions: Leases[Session] = Leases(limits.lease_s, limits.max_sessions)
        self._threads = DaemonThreads(MAX_THREADS, "turngym-served")
        self._given_tasks = tasks
        self._own_tasks = lru_cache(maxsize=8)(factory.tasks)

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """Return the tasks that clients may name by their index."""
        return self._own_tasks(split, seed) if self._given_tasks is None else self._given_tasks

    def task_at(self, split: Json, seed: Json, index: Json) -> Task:
        """Return the task that a client names.

        Raises:
            BadRequestError: There is none.
        """
        if split not in ("train", "eval"):
            raise BadRequestError(f"split is 'train' or 'eval', got {split!r}")
        if not isinstance(seed, int) or not isinstance(index, int):
            raise BadRequestError(f"seed and index are whole numbers, got {seed!r} and {index!r}")
        tasks = self.tasks(split, seed)
        if not 0 <= index < len(tasks):
            raise BadRequestError(f"there is no task {index}; wanted 0 to {len(tasks) - 1}")
        return tasks[index]

    async def begin(self, task: Task | None, seed: int | None) -> Json:
        """Begin an episode; return its session's id, the first observation and the info."""
        session, told = await Session.begin(self.factory, task, seed, self._threads, self.limits.timeout_s)
        key = secrets.token_urlsafe(16)
        try:
            self.sessions.add(key, session)
        except EnvUnavailableError:
            await session.close()
            raise
        return {"session_id": key, **told}

    async def step(self, key: str, action: Json, turn: int | None) -> Json:
        """Take a step; one that fails ends the session."""
        try:
            async with self.sessions.using(key) as session:
                return await session.step(action_of(action), turn)
        except BadRequestError:
            raise
        except Exception:
            await self.sessions.close(key)
            raise
