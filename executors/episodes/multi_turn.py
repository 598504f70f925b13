"""One episode over many turns: observation, completion, step, until it ends for exactly one reason."""

from dataclasses import replace

from ...agents.base import Generator, Sampling
from ...envs.task import Task
from ..pools.env_pool import EnvFactory, EnvPool
from .base import Agent
from .episode import Episode
from .failures import EpisodeError
from .limits import Limits
from .retry import SeedFor
from .trajectory import EndReason, Failure, Trajectory


class MultiTurn:
    """Runs episodes of one kind of environment with one agent; holds no state between them.

    Args:
        agent: Starts conversations.
        env_factory: Makes a fresh environment for each episode.
        env_pool: Where environments run.
        limits: What each episode may use.
    """

    def __init__(self, agent: Agent, env_factory: EnvFactory, env_pool: EnvPool, limits: Limits) -> None:
        self.agent = agent
        self.env_factory = env_factory
        self.env_pool = env_pool
        self.limits = limits

    async def run(
        self,
        task: Task,
        attempt: int,
        generator: Generator,
        sampling: Sampling,
        seed_for: SeedFor | None = None,
    ) -> Trajectory:
        """Run one episode to its end; whatever fails on the way becomes a typed failure.

        Args:
            task: What to do.
            attempt: Which of the group's attempts this is.
            generator: The engine.
            sampling: How to sample; its `max_tokens` is a limit per turn beside `Limits.max_turn_tokens`.
            seed_for: Gives the engine's seed from task id, attempt and turn; only for full determinism.

        Raises:
            asyncio.CancelledError: The caller cancelled; the environment is closed by then.
        """
        episode = self.episode(task, attempt, generator, sampling, seed_for)
        failure: Failure | None = None
        end = EndReason.FAILED
        try:
            await episode.begin(self.env_factory)
            end = await episode.play()
            episode.finish()
        except EpisodeError as failed:
            failure, end = failed.failure, EndReason.FAILED
        finally:
            await episode.close()
        return episode.trajectory(end, failure)

    def episode(
        self, task: Task, attempt: int, generator: Generator, sampling: Sampling, seed_for: SeedFor | None = None
    ) -> Episode:
        """Return an episode that has not begun, for who runs its stages otherwise than `run` does."""
        return Episode(self.agent, self.env_pool, self.limits, task, attempt, generator, sampling, seed_for)


class SingleTurn(MultiTurn):
    """Runs episodes of one completion; a task that is not over then ends as `max_turns`."""

    def __init__(self, agent: Agent, env_factory: EnvFactory, env_pool: EnvPool, limits: Limits) -> None:
        super().__init__(agent, env_factory, env_pool, replace(limits, max_turns=1))
