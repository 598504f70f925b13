"""The environment classes users write: Gymnasium's `reset` and `step`, over text.

An observation is what the model reads next, an action is what it wrote. `terminated` is the task's
end, `truncated` is a limit; the learner knows the difference.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, SupportsFloat, runtime_checkable

import gymnasium

from ..errors import EnvError
from .messages import Observation
from .spaces import ChatSpace, TextSpace
from .task import Split, Task, seeded_tasks
from .tools.calls import ParsedAnswer

StepResult = tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]


class Action(str):
    """What the model wrote, as text without special tokens; it also says where it came from.

    Attributes:
        raw: The same completion with special tokens kept.
        query: All text of the episode up to and including this completion, special tokens kept;
            only where the environment sets `wants_query`.
        is_cut: The completion ended at a token limit rather than by the model's own decision.
        parsed: Its text and tool calls as the model's own parser read them; only in episodes with tools.
    """

    raw: str
    query: str | None
    is_cut: bool
    parsed: ParsedAnswer | None

    def __new__(
        cls,
        text: str,
        *,
        raw: str | None = None,
        query: str | None = None,
        is_cut: bool = False,
        parsed: ParsedAnswer | None = None,
    ) -> "Action":
        """Return the text, with where it came from."""
        action = super().__new__(cls, text)
        action.raw = text if raw is None else raw
        action.query = query
        action.is_cut = is_cut
        action.parsed = parsed
        return action

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]:
        given = {"raw": self.raw, "query": self.query, "is_cut": self.is_cut, "parsed": self.parsed}
        return (str(self),), given


class _TaskSource:
    """What both kinds of environment share: spaces, their own tasks, and what they want of an action."""

    observation_space: ClassVar[gymnasium.Space[Any]] = ChatSpace()
    action_space: ClassVar[gymnasium.Space[str]] = TextSpace()
    wants_query: ClassVar[bool] = False
    needs_dataset: ClassVar[bool] = False  # its tasks come from a dataset: it has none of its own
    family: ClassVar[str | None] = None  # shares a limit and a weight with all of that name; by default the class's

    @classmethod
    def num_sides(cls, kwargs: Mapping[str, Any]) -> int:
        """Say how many episodes of the policy one environment is, made with these arguments; by default one.

        Several are the sides of a game. `info["side"]` of `reset` and `step` then says whose turn is next, the
        observation is for that side, and the last `info` holds `rewards`, one for each side.
        """
        return 1

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """Return this environment's own tasks; by default endless ones that are only seeds.

        The splits must not share a task. Called once, on the driver, before anything is trained.
        """
        return seeded_tasks(type(self).__name__, split, seed)

    def complaints(self, tasks: Sequence[Task]) -> list[str]:
        """Say what is doubtful about tasks before anything is trained on them, a line each; by default nothing.

        Called once, on the driver. What makes a task unusable is for `reset` to raise.
        """
        return []


@runtime_checkable
class Stateful(Protocol):
    """A class of environments that keeps something beyond its episodes: a curriculum, counters its episodes share.

    Optional: checkpoints hold the state of classes that have these two class methods, and a resumed run gives it back
    before the class's first `reset`. It is not for what one episode knows; an episode that did not end is begun again.

    Each process that hosts environments has a copy of the class, and the copies know nothing of each other. So a
    checkpoint holds several states, and a resumed run with fewer processes gives one class several of them.
    """

    def state_dict(self) -> Any:
        """Return what the class keeps, picklable; a class method."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """Add what an earlier process kept to what is there: sum counters, take the furthest level; a class method.

        Called once for each state that falls to this process, perhaps never.
        """
        ...


class Env(_TaskSource, gymnasium.Env[Observation, str]):
    """A synchronous environment. It may block: executors run it off the event loop.

    `reset` finds the task in `options["task"]` (a `Task`); a plain Gymnasium loop may leave it out
    and give a seed instead. `info` may hold `score` (0 to 1, for filtering) and `extra_logs` (a dict
    of numbers).
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; called through `super()` it seeds `self.np_random`, as Gymnasium's does.

        Returns:
            The first observation and an info dict.
        """
        if type(self).reset is Env.reset:
            raise NotImplementedError(f"{type(self).__name__} must define reset")
        gymnasium.Env.reset(self, seed=seed)
        return "", {}

    def step(self, action: str) -> StepResult:
        """Answer the model's action (an `Action` under an executor).

        Returns:
            observation, reward, terminated, truncated, info. The observation is appended also
            when the episode ends, unless it is empty.
        """
        raise NotImplementedError(f"{type(self).__name__} must define step")

    @property
    def can_fork(self) -> bool:
        """Whether `fork` works in the present state; by default never."""
        return False

    def fork(self) -> "Env":
        """Return a second environment that goes on from here; see `AsyncEnv.fork`."""
        raise EnvError(f"{type(self).__name__} cannot fork; its can_fork says so")

    def _draw(self, seed: int | None, options: dict[str, Any] | None) -> Task:
        """Seed `self.np_random` from the task (or `seed`) and return the task, drawn if none was given.

        Without either, the seed follows from the last one, as Gymnasium's environments do it.
        """
        task = (options or {}).get("task")
        if task is None:
            seed = int(self.np_random.integers(1 << 30)) if seed is None else seed
            task = Task(id=f"{type(self).__name__}/seed/{seed}", seed=seed)
        gymnasium.Env.reset(self, seed=task.seed if task.seed is not None else seed)
        return task


class AsyncEnv(_TaskSource):
    """An environment whose `reset` and `step` are coroutines: for tools, sandboxes and services.

    Executors await it on their event loop, so it must never block. `gymnasium.make` and plain loops
    get it through a synchronous facade.
    """

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; see `Env.reset`."""
        if type(self).reset is AsyncEnv.reset:
            raise NotImplementedError(f"{type(self).__name__} must define reset")
        return "", {}

    async def step(self, action: str) -> StepResult:
        """Answer the model's action; see `Env.step`."""
        raise NotImplementedError(f"{type(self).__name__} must define step")

    @property
    def can_fork(self) -> bool:
        """Whether `fork` works in the present state; by default never."""
        return False

    async def fork(self) -> "AsyncEnv":
        """Return a second environment that goes on from here, independent of this one, and to be closed as well.

        Raises:
            EnvError: It cannot (`can_fork`).
            ProgramError: The model's own program keeps it from being copied.
        """
        raise EnvError(f"{type(self).__name__} cannot fork; its can_fork says so")

    async def close(self) -> None:
        """Free what the episode holds; called exactly once, also after a failure or a cancellation."""
