"""Stands in for `openrlhf.utils.agent`: the classes that a user's `agent_func.py` inherits from."""

import inspect
from abc import ABC, abstractmethod
from typing import Any

from ...errors import ConfigError, EnvError, ImageError
from ..rewards import load_reward
from ..trl_rewards import TrlReward
from .pictures import accumulate_mm_inputs, process_prompt_with_images
from .sampling import SamplingParams
from .session import AgentSession

__all__ = ["AgentExecutorBase", "AgentInstanceBase", "MultiTurnAgentExecutor", "SingleTurnAgentExecutor"]


class AgentExecutorBase(ABC):
    """Runs whole episodes by itself; one object serves all episodes of a process, many at once."""

    @abstractmethod
    async def execute(
        self,
        prompt: str,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        """Run one episode; called by keyword, and an override may lack `images`.

        Args:
            prompt: Text.
            label: The expected answer.
            sampling_params: How to sample; an object of this episode's own.
            max_length: Most tokens of the episode.
            hf_tokenizer: The model's; of one that reads images, its processor as well.
            llm_engine: `await llm_engine.generate(prompt_token_ids, sampling_params, multi_modal_data=None)` samples a
                completion; the last is `{"image": [...]}` with all images that the ids have places for.
            images: The prompt's, as a list of Pillow's; None for none.

        Returns:
            `observation_tokens`, `action_ranges` (pairs of start and end of what was sampled), `reward`, and optionally
            `scores`, `extra_logs`, `truncated`. Logprobs and images are the engine's, whatever `rollout_log_probs` and
            `mm_train_inputs` say.
        """
        raise NotImplementedError


class AgentInstanceBase(ABC):
    """The environment of one episode."""

    async def reset(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return the text to begin with as `observation`; by default the prompt."""
        return states

    @abstractmethod
    async def step(self, state_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Answer `action_text` by `rewards`, `environment_feedback` and `done`; see docs/openrlhf.md."""
        raise NotImplementedError


class MultiTurnAgentExecutor(AgentExecutorBase):
    """Runs episodes of an `AgentInstanceBase` until it is done or the context is full."""

    def __init__(self, agent_instance_cls: type[AgentInstanceBase]) -> None:
        if not (isinstance(agent_instance_cls, type) and issubclass(agent_instance_cls, AgentInstanceBase)):
            raise ConfigError(
                f"MultiTurnAgentExecutor got {agent_instance_cls!r}; wanted a class that inherits AgentInstanceBase"
            )
        self.agent_instance_cls = agent_instance_cls

    async def execute(
        self,
        prompt: str,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        """Run one episode; only subclasses call it: an executor that overrides nothing runs as an environment."""
        source = repr(inspect.getfile(type(self)))
        given = sampling_params if isinstance(sampling_params, SamplingParams) else SamplingParams()
        session = await AgentSession.begin(self.agent_instance_cls, prompt, label, given, source)
        tokens, tensors, pictures = _encoded(hf_tokenizer, session.observation_text, images)
        ranges: list[tuple[int, int]] = []
        logs: dict[str, float] = {}
        reward, score, is_done, is_cut = 0.0, None, False, False
        while not is_done and len(tokens) < max_length:
            output = (await llm_engine.generate(list(tokens), session.params, _shown(pictures))).outputs[0]
            ranges.append((len(tokens), len(tokens) + len(output.token_ids)))
            answer = await session.step(output.text)
            feedback, new_tensors, new_pictures = _encoded(hf_tokenizer, answer.feedback, answer.images)
            tokens += [*output.token_ids, *feedback]
            tensors, pictures = accumulate_mm_inputs(tensors, new_tensors), pictures + new_pictures
            reward, is_done, is_cut = reward + answer.reward, answer.is_done, output.finish_reason == "length"
            score = score if answer.score is None else answer.score
            logs.update(answer.extra_logs)
        return {
            "prompt": prompt,
            "label": label,
            "images": images,
            "mm_train_inputs": tensors,
            "observation_tokens": tokens,
            "action_ranges": ranges,
            "rollout_log_probs": None,
            "reward": reward,
            "scores": score,
            "extra_logs": logs,
            "truncated": is_cut or not is_done,
        }


class SingleTurnAgentExecutor(AgentExecutorBase):
    """Runs episodes of one completion, scored by a reward function.

    Args:
        remote_rm_url: A Python file with `reward_func`, or HTTP URLs.
    """

    def __init__(self, remote_rm_url: str | list[str] | None = None) -> None:
        urls = remote_rm_url if isinstance(remote_rm_url, str | None) else ",".join(remote_rm_url)
        reward = load_reward(urls) if urls else None
        if isinstance(reward, TrlReward):
            raise ConfigError(
                f"{urls!r} is written for TRL; OpenRLHF's agents want reward_func(queries, prompts, labels)"
            )
        self._reward = reward

    async def execute(
        self,
        prompt: str,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        """Run one episode."""
        prompt_ids, tensors, pictures = _encoded(hf_tokenizer, prompt, images)
        output = (await llm_engine.generate(list(prompt_ids), sampling_params, _shown(pictures))).outputs[0]
        tokens = [*prompt_ids, *output.token_ids]
        result: dict[str, Any] = {
            "prompt": prompt,
            "label": label,
            "images": images,
            "mm_train_inputs": tensors,
            "observation_tokens": tokens,
            "action_ranges": [(len(prompt_ids), len(tokens))],
            "rollout_log_probs": None,
            "truncated": output.finish_reason == "length",
            "reward": None,
            "scores": None,
            "extra_logs": {},
        }
        if self._reward is not None:
            query = hf_tokenizer.decode(tokens, skip_special_tokens=False)
            rewards = await self._reward([query], [prompt], [label])
            if len(rewards) != 1:
                raise EnvError(f"wanted one reward for one query, got {len(rewards)}")
            scored = rewards[0]
            result |= {"reward": scored.reward, "scores": scored.score, "extra_logs": scored.extra_logs}
        return result


def _encoded(tokenizer: Any, text: str, images: Any) -> tuple[list[int], dict[str, Any] | None, list[Any]]:
    """Return what `process_prompt_with_images` does; a text alone needs nothing of a processor."""
    if not images:
        return list(tokenizer.encode(text, add_special_tokens=False)) if text else [], None, []
    if not hasattr(tokenizer, "image_processor"):
        raise ImageError("a text came with images, and this model reads text only; use a vision-language model")
    return process_prompt_with_images(tokenizer, text, images)


def _shown(pictures: list[Any]) -> dict[str, Any] | None:
    return {"image": pictures} if pictures else None
