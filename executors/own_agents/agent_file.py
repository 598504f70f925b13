"""Runs episodes of OpenRLHF executors that play them by themselves; only what the engine sampled is trained on."""

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Completion, Generator, Sampling
from ...agents.chat import ChatAgent
from ...agents.images import Images
from ...agents.placed_images import ImagePlaces, ReadingTokenizer
from ...agents.sequence import BEFORE_FIRST_TURN, Sequence, SequenceBuilder
from ...envs.factory import EnvFactory
from ...envs.images import as_image
from ...envs.messages import Message
from ...envs.openrlhf.env import AgentFile, is_multi_turn, shared_executor, takes_images
from ...envs.openrlhf.session import number, numbers
from ...envs.task import Task
from ...errors import EnvError
from ..episodes.failures import Stage, failure_of
from ..episodes.limits import Limits
from ..episodes.multi_turn import MultiTurn
from ..episodes.retry import SeedFor
from ..episodes.trajectory import EndReason, Failure, Trajectory
from ..pools.abandoned import Abandoned
from ..pools.env_pool import EnvPool
from ..pools.on_loop import direct
from .agent_engine import AgentEngine, Sample, Samples

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def make_executor(
    agent: ChatAgent, env: EnvFactory, pool: EnvPool, limits: Limits, tokenizer: "PreTrainedTokenizerBase"
) -> MultiTurn:
    """Return what runs a run's episodes: turn by turn, unless they are those of a file that plays them by itself."""
    if not env.members and issubclass(env.env_class, AgentFile):
        executor = shared_executor(env.kwargs["path"])
        if not is_multi_turn(executor):
            return AgentFileExecutor(executor, agent, env, pool, limits, tokenizer)
    return MultiTurn(agent, env, pool, limits)


class AgentFileExecutor(MultiTurn):
    """Calls `execute` of a user's `AgentExecutor`, one object for all episodes, and makes trajectories of its answers.

    Args:
        executor: The user's.
        agent: Only for how the model reads images: the user's code makes the prompts.
        env_factory: Of `AgentFile`; makes nothing here, and says which file it is.
        env_pool: Unused.
        limits: What each episode may use; its turns are the completions that it asks for, and have no limit.
        tokenizer: The model's.
    """

    def __init__(
        self,
        executor: Any,  # Any: an AgentExecutorBase, of ours or of an installed OpenRLHF
        agent: ChatAgent,
        env_factory: EnvFactory,
        env_pool: EnvPool,
        limits: Limits,
        tokenizer: "PreTrainedTokenizerBase",
    ) -> None:
        super().__init__(agent, env_factory, env_pool, limits)
        self._executor = executor
        self._tokenizer = tokenizer
        self._source = f"AgentExecutor.execute of {env_factory.kwargs['path']!r}"
        self._samples = Samples()
        self._abandoned = Abandoned()
        self._takes_images = takes_images(executor)
        self._shown_tokenizer: Any = tokenizer  # Any: one that is a processor too has no type of its own
        self._places: ImagePlaces | None = None
        if agent.images is not None:
            self._shown_tokenizer = ReadingTokenizer(tokenizer, agent.images)
            self._places = ImagePlaces(agent.images, tokenizer)

    async def run(
        self,
        task: Task,
        attempt: int,
        generator: Generator,
        sampling: Sampling,
        seed_for: SeedFor | None = None,
    ) -> Trajectory:
        """Run one episode; see `MultiTurn.run`."""
        began_at = time.monotonic()
        engine = AgentEngine(
            self._samples,
            generator,
            sampling,
            self.limits,
            self._decode,
            f"{task.id}/{attempt}",
            None if seed_for is None else functools.partial(seed_for, task.id, attempt),
            self._places,
        )
        episode = self._samples.begin()
        failure: Failure | None = None
        answer: _Answer | None = None
        try:
            call = functools.partial(self._call, task, engine)
            result = await direct(call, self._source, self.limits.max_seconds, self._abandoned)
            answer = self._checked(result, engine)
        except Exception as error:
            failure = engine.too_long or failure_of(error, Stage.ENV, engine.num_completions - 1)
        finally:
            self._samples.end(episode)
        # Whatever the user's code makes of an engine's failure, nothing can be learned from what came of it.
        failure = engine.failure or failure
        total_s = time.monotonic() - began_at
        seconds = {
            "generate": engine.seconds,
            "env": max(0.0, total_s - engine.seconds),
            "render": 0.0,
            "total": total_s,
        }
        if failure is not None or answer is None:
            assert failure is not None
            return Trajectory(task, attempt, (), (), np.empty(0), (), EndReason.FAILED, failure, seconds=seconds)
        return answer.trajectory(task, attempt, seconds)

    async def _call(self, task: Task, engine: AgentEngine) -> object:
        if not isinstance(task.prompt, str):
            raise EnvError(f"{self._source} needs a prompt that is text; for chat give --data.apply_chat_template")
        arguments: dict[str, Any] = {
            "prompt": task.prompt,
            "label": "" if task.label is None else task.label,
            "sampling_params": engine.params(),
            "max_length": engine.max_context,
            "hf_tokenizer": self._shown_tokenizer,
            "llm_engine": engine,
        }
        images = [as_image(image).to_pil() for image in getattr(task.prompt, "images", ())] or None
        if self._takes_images:
            arguments["images"] = images
        elif images:
            raise EnvError(f"{self._source} takes no images, and its prompt has some; give it the parameter 'images'")
        return await self._executor.execute(**arguments)

    def _checked(self, result: object, engine: AgentEngine) -> "_Answer":
        """Find each action among what was sampled, and take logprobs and versions from there."""
        what = self._source
        if not isinstance(result, Mapping) or not {"observation_tokens", "action_ranges"} <= result.keys():
            raise EnvError(f"{what} returned {result!r:.200}; wanted a dict with 'observation_tokens', 'action_ranges'")
        if result.get("mm_train_inputs") and self._places is None:
            raise EnvError(f"{what} returned mm_train_inputs, and this model reads text only")
        token_ids = np.asarray(list(result["observation_tokens"]), np.int32)
        ranges = [(int(start), int(stop)) for start, stop in result["action_ranges"]]
        if not ranges:
            raise EnvError(f"{what} returned no action_ranges: nothing was sampled that could be learned from")
        samples = [self._sample(token_ids, start, stop, engine) for start, stop in ranges]
        reward = number(result.get("reward"), f"the reward of {what}")
        score = None if (given := result.get("scores")) is None else number(given, f"the scores of {what}")
        logs = numbers(result.get("extra_logs"), what)
        return _Answer(
            self._sequence(token_ids[: max(engine.max_context, ranges[-1][1])], ranges, samples),
            self._messages(token_ids, ranges),
            samples,
            reward,
            score,
            logs,
            bool(result.get("truncated", False)),
        )

    def _sample(self, token_ids: NDArray[np.int32], start: int, stop: int, engine: AgentEngine) -> Sample:
        sample = None
        if 0 <= start < stop <= len(token_ids):
            sample = self._samples.find(token_ids[:start], token_ids[start:stop], engine)
        if sample is None:
            raise EnvError(
                f"{self._source} returned tokens {start} to {stop} of {len(token_ids)} as an action, "
                "and the engine did not sample them after the tokens before; was text decoded and encoded again, or a "
                "prompt edited?"
            )
        return sample

    def _sequence(self, token_ids: NDArray[np.int32], ranges: list[tuple[int, int]], samples: list[Sample]) -> Sequence:
        builder, end = SequenceBuilder(), 0
        images: Images = ()
        for turn, ((start, stop), sample) in enumerate(zip(ranges, samples, strict=True)):
            if start < end:
                raise EnvError(f"{self._source} returned action_ranges that overlap or are out of order: {ranges}")
            if tuple(sample.images[: len(images)]) != tuple(images):
                raise EnvError(f"{self._source} returned actions that were sampled after different images as one text")
            new, images = sample.images[len(images) :], sample.images
            shown = [placed.moved(-end) for placed in new]
            builder.add_context(token_ids[end:start], turn - 1 if turn else BEFORE_FIRST_TURN, shown)
            builder.add_completion(_cut(sample.completion, stop - start), sample.sampling, turn)
            end = stop
        # What nobody answered may hold images that the engine was never shown.
        rest = token_ids[end:] if self._places is None else self._places.before_any(token_ids[end:])
        builder.add_context(rest, len(ranges) - 1)
        return builder.build()

    def _messages(self, token_ids: NDArray[np.int32], ranges: list[tuple[int, int]]) -> tuple[Message, ...]:
        messages, end = [], 0
        for start, stop in ranges:
            messages.append(Message(role="user", content=self._decode(token_ids[end:start].tolist())))
            messages.append(Message(role="assistant", content=self._decode(token_ids[start:stop].tolist())))
            end = stop
        if end < len(token_ids):
            messages.append(Message(role="user", content=self._decode(token_ids[end:].tolist())))
        return tuple(messages)

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


@dataclass(frozen=True)
class _Answer:
    """What `execute` returned, checked."""

    sequence: Sequence
    messages: tuple[Message, ...]
    samples: list[Sample]
    reward: float
    score: float | None
    extra_logs: dict[str, float]
    is_truncated: bool

    def trajectory(self, task: Task, attempt: int, seconds: dict[str, float]) -> Trajectory:
        """Return the episode; its reward is the last turn's, since nobody says which one earned it."""
        rewards = np.zeros(len(self.samples))
        rewards[-1] = self.reward
        return Trajectory(
            task=task,
            attempt=attempt,
            sequences=(self.sequence,),
            messages=self.messages,
            rewards_per_turn=rewards,
            turn_ends=tuple(sample.end for sample in self.samples),
            end_reason=EndReason.TRUNCATED if self.is_truncated else EndReason.TERMINATED,
            score=self.score,
            extra_logs=self.extra_logs,
            seconds=seconds,
        )


def _cut(completion: Completion, length: int) -> Completion:
    """Return its first tokens, all that an executor may have kept."""
    if length == len(completion.token_ids):
        return completion
    logprobs = None if completion.logprobs is None else completion.logprobs[:length]
    return Completion(completion.token_ids[:length], logprobs, completion.versions[:length], completion.stop_reason)
