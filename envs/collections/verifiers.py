"""`verifiers/NAME`: environments of the package `verifiers`: its rows are tasks, its rubric gives the reward.

The package runs an episode by asking a client for completions; here the same steps are taken one by one, with what the
policy sampled in the place of a client's answer. Its coroutines run on a loop of their own, since rubrics may block.
"""

import asyncio
import copy
import hashlib
import json
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from ...errors import ConfigError, EnvError, TurnGymError
from ..base import Action, AsyncEnv, StepResult
from ..loop_thread import LoopThread
from ..messages import Message, Observation
from ..registration import Collection
from ..task import LazyTasks, Split, Task
from ..tools.tool_loop import parsed_answer
from .verifiers_loading import load_env
from .verifiers_scoring import score

EVAL_SHARE = 10  # where there is no dataset to evaluate on, every tenth row is held out, by its text
_LOOP = LoopThread("turngym-verifiers")
T = TypeVar("T")


class Verifiers(AsyncEnv):
    """One row of an environment's dataset: single turn, several turns, or tools.

    Args:
        env: Its id, as `verifiers.load_environment` takes it: a package that is installed, or a module on the path.
        **env_args: What its own `load_environment` takes.
    """

    def __init__(self, env: str, **env_args: Any) -> None:
        self._name = env
        self._env_args = env_args
        self._env: Any = None  # Any: the package's environment and state, dicts with types of many versions
        self._state: Any = None
        self._prompt: list[Message] = []
        self._shown: list[Message] = []  # the same as the policy has seen it, whatever is done to it since

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """Return the rows of the dataset for a split, shuffled by the seed where they are trained on."""
        env = load_env(self._name, self._env_args)
        own = env.eval_dataset is not None
        if split == "train" and env.dataset is None:
            raise ConfigError(f"verifiers/{self._name} has no dataset to train on, only one to evaluate on")
        rows = env.eval_dataset if split == "eval" and own else env.dataset
        places = [i for i, prompt in enumerate(rows["prompt"]) if own or _is_held_out(prompt) == (split == "eval")]
        if not places:
            raise ConfigError(f"verifiers/{self._name} has too few rows: none falls into the {split} split")
        return LazyTasks(len(places), lambda index: _task(self._name, split, places[index], rows[places[index]]))

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Show a row's prompt, and the tools there are."""
        await self.close()
        task = (options or {}).get("task")
        if not isinstance(task, Task) or "prompt" not in task.data:
            raise EnvError(
                f"verifiers/{self._name} takes its own tasks only: reset(options={{'task': env.tasks(...)[0]}})"
            )
        self._env = await asyncio.to_thread(load_env, self._name, self._env_args)
        await self._run(self._begin(dict(task.data)))
        tools = list(self._state.get("oai_tools") or ())
        return list(self._shown), ({"tools": tools} if tools else {})

    async def step(self, action: str) -> StepResult:
        """Give the environment what was written; at the end its rubric scores all of it."""
        if self._state is None:
            raise EnvError(f"verifiers/{self._name}: step was called with no episode running; call reset first")
        shown = await self._run(self._answered(action))
        if shown is not None:
            return shown, 0.0, False, False, {}
        state, self._state = self._state, None
        reward, metrics = await self._run(score(self._env, state))
        is_cut = state.get("stop_condition") == "max_turns_reached" and self._env.max_turns > 1
        last = list(state.get("final_env_response") or ())
        return last, reward, not is_cut, is_cut, {"score": reward, "extra_logs": metrics}

    async def close(self) -> None:
        """Let the environment clean up after an episode that did not end."""
        state, self._state = self._state, None
        if state is not None:
            await self._run(self._env._cleanup(state))

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return await asyncio.wrap_future(_LOOP.submit(coroutine))
        except TurnGymError:
            raise
        except Exception as error:
            raise EnvError(f"verifiers/{self._name} failed: {type(error).__name__}: {error}") from error

    async def _begin(self, row: dict[str, Any]) -> None:
        # Kept at once, so that what was set up is cleaned up whatever fails.
        self._state = await self._env.init_state(row, client=None, model="policy", sampling_args={})
        self._state = await self._env.setup_state(self._state)
        if await self._env.is_completed(self._state):
            reason = self._state.get("stop_condition")
            self._state = None  # it has cleaned up
            raise EnvError(f"verifiers/{self._name} is over before its first turn, by {reason!r}")
        self._keep(await self._env.get_prompt_messages(self._state))

    async def _answered(self, action: str) -> list[Message] | None:
        """Return what the environment answers; None at the end."""
        env, state = self._env, self._state
        await env.add_model_response(state, self._prompt, _completion(action, bool(state.get("oai_tools"))))
        if await env.is_completed(state):
            return None
        said = len(self._prompt) + len(state["trajectory"][-1]["completion"])
        prompt = await env.get_prompt_messages(state)
        if state.get("final_env_response") is not None:
            await env.is_completed(state)
            return None
        if prompt[: len(self._shown)] != self._shown or len(prompt) <= said:
            raise EnvError("it rewrites what was said before, which cannot be shown to a policy token for token")
        self._keep(prompt)
        return self._shown[said:]

    def _keep(self, prompt: list[Message]) -> None:
        self._prompt, self._shown = prompt, copy.deepcopy(prompt)


def _completion(action: str, has_tools: bool) -> Any:
    """Return the action in the form of a client's answer."""
    from openai.types.chat import ChatCompletion

    message: dict[str, Any] = {"role": "assistant", "content": str(action)}
    if has_tools and (parsed := parsed_answer(action)).calls:
        message["content"] = parsed.content
        message["tool_calls"] = [
            {
                "id": call.id or f"call_{place}",
                "type": "function",
                # What could not be read stays no JSON: the environment tells the model so, in its own words.
                "function": {"name": call.name, "arguments": call.problem or json.dumps(dict(call.arguments))},
            }
            for place, call in enumerate(parsed.calls)
        ]
    is_cut = isinstance(action, Action) and action.is_cut
    choice = {"index": 0, "finish_reason": "length" if is_cut else "stop", "message": message}
    return ChatCompletion.model_validate(
        {"id": "", "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]}
    )


def _task(name: str, split: Split, number: int, row: dict[str, Any]) -> Task:
    # Arrow gives every message every key; those that are null were not there.
    prompt: list[Any] = [{key: value for key, value in said.items() if value is not None} for said in row["prompt"]]
    digest = hashlib.sha256(json.dumps([prompt, row.get("answer")], default=str).encode()).hexdigest()[:10]
    task_id = f"verifiers/{name}/{split}/{number}-{digest}"
    return Task(id=task_id, prompt=prompt, label=row.get("answer"), data={**row, "prompt": prompt})


def _is_held_out(prompt: object) -> bool:
    digest = hashlib.sha256(json.dumps(prompt, default=str, sort_keys=True).encode()).digest()
    return int.from_bytes(digest[:8], "big") % EVAL_SHARE == 0


COLLECTION = Collection(
    target=f"{__name__}:Verifiers", parameter="env", names=lambda: ["INSTALLED_ENVIRONMENT"], is_open=True
)
