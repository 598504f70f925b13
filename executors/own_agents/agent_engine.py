"""What an OpenRLHF executor calls its engine: vLLM's names over our engine, and a memory of what was sampled."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Completion, Generator, Sampling, StopReason
from ...agents.images import Images
from ...agents.placed_images import ImagePlaces
from ...envs.openrlhf.pictures import images_given
from ...envs.openrlhf.sampling import SamplingParams, changes
from ...errors import EngineError, EnvError, ImageError
from ..episodes.failures import Stage, failure_of
from ..episodes.limits import Limits, TokenBound, token_bound
from ..episodes.trajectory import Failure, FailureKind, TurnEnd
from ..episodes.turn_sampling import resampled


@dataclass(frozen=True)
class Logprob:
    """As vLLM's."""

    logprob: float


@dataclass(frozen=True)
class CompletionOutput:
    """As vLLM's; `logprobs` has one dict per token, with the sampled one alone."""

    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str
    index: int = 0


@dataclass(frozen=True)
class RequestOutput:
    """As vLLM's."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = True


@dataclass(frozen=True)
class Sample:
    """One completion, with what it continued."""

    prompt_ids: NDArray[np.int32]
    completion: Completion
    sampling: Sampling
    end: TurnEnd
    owner: object  # the engine of the episode that asked
    images: Images = ()  # that the prompt's ids stand for


class Samples:
    """What one executor's episodes sampled, as long as one of them may still return it.

    An executor may keep the first episode's engine and use it for all, so it is shared by what runs at the same time.
    """

    def __init__(self) -> None:
        self._by_prompt: dict[bytes, list[Sample]] = {}
        self._order: deque[tuple[int, bytes]] = deque()
        self._running: set[int] = set()
        self._clock = 0

    def begin(self) -> int:
        """Note that an episode begins; return its number."""
        self._clock += 1
        self._running.add(self._clock)
        return self._clock

    def end(self, number: int) -> None:
        """Forget what no running episode has seen."""
        self._running.discard(number)
        oldest = min(self._running, default=self._clock + 1)
        while self._order and self._order[0][0] < oldest:
            key = self._order.popleft()[1]
            self._by_prompt[key].pop(0)
            if not self._by_prompt[key]:
                del self._by_prompt[key]

    def add(self, sample: Sample) -> None:
        """Keep one."""
        key = sample.prompt_ids.tobytes()
        self._by_prompt.setdefault(key, []).append(sample)
        self._order.append((self._clock, key))

    def find(self, prompt_ids: NDArray[np.int32], action_ids: NDArray[np.int32], owner: object) -> Sample | None:
        """Return what was sampled after these tokens and begins with those; rather by the episode itself.

        Raises:
            ImageError: Images of one size have the same tokens, and which of them were meant cannot be told.
        """
        length = len(action_ids)
        found = [
            sample
            for sample in self._by_prompt.get(prompt_ids.tobytes(), ())
            if np.array_equal(sample.completion.token_ids[:length], action_ids)
        ]
        if _differ(found):
            found = [sample for sample in found if sample.owner is owner]
            if not found or _differ(found):
                raise ImageError(
                    "these tokens were sampled after different images of one size, and which were meant cannot be "
                    "told; let each episode use its own llm_engine"
                )
        # The whole of what was sampled comes before a longer completion that was cut.
        found.sort(key=lambda sample: (len(sample.completion.token_ids) != length, sample.owner is not owner))
        return found[0] if found else None


def _differ(samples: Sequence[Sample]) -> bool:
    """Whether samples of the same tokens were shown different images."""
    return len({tuple(placed.image for placed in sample.images) for sample in samples}) > 1


class AgentEngine:
    """One episode's engine, as `llm_engine`; may be called from other threads' event loops."""

    def __init__(
        self,
        samples: Samples,
        generator: Generator,
        sampling: Sampling,
        limits: Limits,
        decode: Callable[[list[int]], str],
        name: str,
        seed_for: Callable[[int], int] | None,
        places: ImagePlaces | None = None,
    ) -> None:
        self.failure: Failure | None = None  # of any completion; the episode is then worth nothing
        self.too_long: Failure | None = None  # the first prompt, which may still be cut
        self.num_completions = 0
        self.seconds = 0.0
        self.max_context = min(generator.max_context, limits.max_context or generator.max_context)
        self._samples = samples
        self._generator = generator
        self._first = sampling
        self._limits = limits
        self._decode = decode
        self._name = name
        self._seed_for = seed_for
        self._places = places
        self._num_sampled = 0
        self._loop = asyncio.get_running_loop()
        turn_tokens = sampling.max_tokens
        self._turn_tokens = min(turn_tokens, limits.max_turn_tokens or turn_tokens)

    def params(self) -> SamplingParams:
        """Return an object of the episode's own that says how it is sampled."""
        first = self._first
        return SamplingParams(
            first.temperature, first.top_p, first.top_k, first.min_p, self._turn_tokens, list(first.stop)
        )

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling_params: Any = None, multi_modal_data: Any = None
    ) -> RequestOutput:
        """Sample one completion.

        Args:
            prompt_token_ids: Sent to the model as they are.
            sampling_params: Ours or vLLM's; by default as the run samples.
            multi_modal_data: `{"image": ...}` with all images that the ids have places for.

        Raises:
            EnvError: What is asked for cannot be trained on, or leaves no room for a token.
            ImageError: Ids and images do not go together.
            EngineError: The engine failed.
        """
        if asyncio.get_running_loop() is not self._loop:
            there = self.generate(prompt_token_ids, sampling_params, multi_modal_data)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there, self._loop))
        prompt_ids = np.asarray(list(prompt_token_ids), np.int32)
        images = self._placed(prompt_ids, multi_modal_data)
        number = self.num_completions
        self.num_completions += 1
        sampling, bound = self._sampling(sampling_params, len(prompt_ids), number)
        completion = await self._sampled(prompt_ids, sampling, number, images)
        if images and self._places is not None:
            self._places.check_sampled(completion.token_ids)
        self._num_sampled += len(completion.token_ids)
        self._samples.add(Sample(prompt_ids, completion, sampling, bound.end_of(completion), self, images))
        return self._output(prompt_ids, completion, f"{self._name}/{number}")

    def _placed(self, prompt_ids: NDArray[np.int32], data: Any) -> Images:
        given = dict(data or {})
        images = images_given(given.pop("image", None))
        if any(given.values()):
            raise EnvError(
                f"generate takes images alone, as multi_modal_data={{'image': [...]}}; it got {', '.join(given)}"
            )
        if self._places is not None:
            return self._places.find(prompt_ids, images)
        if images:
            raise ImageError("generate was given images, and this model reads text only; use a vision-language model")
        return ()

    def _sampling(self, params: Any, num_prompt: int, number: int) -> tuple[Sampling, TokenBound]:
        asked = {} if params is None else changes(params, self.params(), self._name)
        if (most := getattr(params, "max_tokens", None)) is not None:
            asked["max_tokens"] = most  # here a request of vLLM's says what it means
        sampling = resampled(self._first, asked)
        left = self._limits.max_episode_tokens
        bound = token_bound(
            min(sampling.max_tokens, self._turn_tokens),
            None if left is None else left - self._num_sampled,
            self.max_context - num_prompt,
        )
        if bound.max_tokens < 1:
            message = (
                f"a prompt of {num_prompt} tokens leaves no room for an answer (context {self.max_context}, "
                f"{self._num_sampled} tokens of the episode sampled)"
            )
            if number == 0:
                self.too_long = Failure(FailureKind.PROMPT_TOO_LONG, message, -1)
            raise EnvError(message)
        seed = None if self._seed_for is None else self._seed_for(number)
        return replace(sampling, max_tokens=bound.max_tokens, seed=seed), bound

    async def _sampled(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, number: int, images: Images
    ) -> Completion:
        name, began_at = f"{self._name}/{number}", time.perf_counter()
        try:
            async with asyncio.timeout(self._limits.generate_timeout_s):
                completion = await self._generator.generate(prompt_ids, sampling, images or None, name)
            if completion.stop_reason is StopReason.ABORT:
                raise EngineError(f"the engine aborted completion {number} after {len(completion.token_ids)} tokens")
        except Exception as error:
            self.failure = self.failure or failure_of(error, Stage.GENERATE, number)
            raise
        finally:
            self.seconds += time.perf_counter() - began_at
        return completion

    def _output(self, prompt_ids: NDArray[np.int32], completion: Completion, request: str) -> RequestOutput:
        ids = completion.token_ids.tolist()
        logprobs = None
        if completion.logprobs is not None:
            pairs = zip(ids, completion.logprobs.tolist(), strict=True)
            logprobs = [{token_id: Logprob(logprob)} for token_id, logprob in pairs]
        output = CompletionOutput(self._decode(ids), ids, logprobs, completion.stop_reason.value)
        return RequestOutput(request, prompt_ids.tolist(), [output])
