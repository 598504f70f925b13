"""One agent instance of OpenRLHF's through its episode: what it is told and what it answers, checked."""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import EnvError, ImageError, RewardError
from ..images import Image
from .pictures import images_given
from .sampling import SamplingParams, changes


@dataclass(frozen=True)
class Answer:
    """What a step answered; `resampled` is how turns are sampled from now on, other than at first."""

    feedback: str
    reward: float
    is_done: bool
    score: float | None
    extra_logs: Mapping[str, float]
    resampled: dict[str, Any] = field(default_factory=dict)  # Any: see `changes`
    images: Sequence[Image] = ()  # whose places the feedback holds


class AgentSession:
    """An instance with the text it has seen; make one by `begin`."""

    def __init__(self, instance: Any, observation: str, label: object, given: SamplingParams, source: str) -> None:
        self.observation_text = observation
        self.params: object = given.clone()  # the instance may change it, or replace it
        self._instance = instance
        self._label = label
        self._given = given
        self._source = source

    @classmethod
    async def begin(
        cls, agent_class: type[Any], prompt: str, label: object, given: SamplingParams, source: str
    ) -> "AgentSession":
        """Make an instance and let it begin.

        Args:
            agent_class: The user's; its `__init__` may be a coroutine.
            prompt: Text.
            label: The expected answer; "" stands for none, as in OpenRLHF.
            given: How turns are sampled if it changes nothing.
            source: The user's file, for messages.

        Raises:
            EnvError: It answered something else than was agreed.
        """
        made_of: Any = agent_class  # no type says that `__init__` may be a coroutine
        instance = made_of.__new__(made_of)
        await _awaited(made_of.__init__(instance))
        label = "" if label is None else label
        result = await _awaited(instance.reset({"observation": prompt, "label": label}))
        observation = _entry(result, "observation", f"reset of {source}")
        if not isinstance(observation, str):
            raise EnvError(f"reset of {source} returned an observation of {_kind(observation)}; wanted text")
        return cls(instance, observation, label, given, source)

    async def step(self, action_text: str) -> Answer:
        """Tell the instance what the model wrote, special tokens kept, and return what it answers.

        Raises:
            EnvError: It is not what was agreed.
            RewardError: A reward, score or log is no finite number.
        """
        what = f"step of {self._source}"
        states = {
            "observation_text": self.observation_text,
            "action_text": action_text,
            "label": self._label,
            "sampling_params": self.params,
        }
        result = await _awaited(self._instance.step(states))
        feedback = _entry(result, "environment_feedback", what)
        if not isinstance(feedback, str):
            raise EnvError(f"{what} returned an environment_feedback of {_kind(feedback)}; wanted text")
        try:
            images = images_given(result.get("environment_images"))
        except ImageError as error:
            raise EnvError(f"{what} returned environment_images that cannot be read: {error}") from error
        self.observation_text += action_text + feedback
        self.params = result.get("sampling_params") or self.params
        return Answer(
            feedback,
            number(_entry(result, "rewards", what), f"the rewards of {what}"),
            bool(_entry(result, "done", what)),
            None if (score := result.get("scores")) is None else number(score, f"the scores of {what}"),
            numbers(result.get("extra_logs"), what),
            changes(self.params, self._given, self._source),
            images,
        )


def number(value: Any, what: str) -> float:
    """Return a number or a tensor of one as a float.

    Raises:
        RewardError: It is none, or not finite.
    """
    try:
        if value is None or isinstance(value, str):
            raise TypeError
        found = float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        raise RewardError(f"{what}: wanted a number, or a tensor of one, got {value!r:.200}") from None
    if not math.isfinite(found):
        raise RewardError(f"{what}: wanted a finite number, got {found}")
    return found


def numbers(logs: Any, what: str) -> dict[str, float]:
    """Return the numbers of `extra_logs`."""
    if logs is not None and not isinstance(logs, Mapping):
        raise EnvError(f"{what} returned extra_logs of {_kind(logs)}; wanted a dict of numbers")
    return {str(key): number(value, f"extra_logs[{key!r}] of {what}") for key, value in (logs or {}).items()}


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def _entry(result: object, key: str, what: str) -> Any:
    if not isinstance(result, Mapping):
        raise EnvError(f"{what} returned {_kind(result)}; wanted a dict with {key!r}")
    if key not in result:
        raise EnvError(f"{what} returned a dict without {key!r}; it has {', '.join(map(repr, result))}")
    return result[key]


def _kind(value: object) -> str:
    return f"type {type(value).__name__}"
