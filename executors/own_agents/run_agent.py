"""Episodes of OpenRLHF executors that ask a server: `run_agent` is theirs, the server is ours, not their file's."""

import copy
import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ...agents.frameworks.base import Endpoint
from ...agents.frameworks.calls import Calls
from ...envs.factory import EnvFactory
from ...envs.openrlhf.env import AgentFile, is_multi_turn, shared_executor
from ...envs.openrlhf.sampling import SamplingParams
from ...envs.task import Split, Task
from ...errors import EnvError, MissingPackageError, RewardError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ...agents.frameworks.base import UserAgent

METHOD = "run_agent"
_PARAMETERS = ("prompt", "label", "session_id")
_THREADS = 1  # plain functions are none of these


def run_agent_of(env: EnvFactory, tokenizer: "PreTrainedTokenizerBase", max_length: int) -> "UserAgent | None":
    """Return what runs the episodes of a file whose executor asks a server; None where there is no such thing."""
    if env.members or not issubclass(env.env_class, AgentFile):
        return None
    path = str(env.kwargs["path"])
    if not asks_server(path):
        return None
    return RunAgent(
        shared_executor(path), path, SamplingParams(**env.kwargs.get("sampling", {})), tokenizer, max_length
    )


def asks_server(path: str) -> bool:
    """Whether the executor of a file has `async def run_agent(self, prompt, label, session_id)`."""
    executor = shared_executor(path)
    method = getattr(executor, METHOD, None)
    if is_multi_turn(executor) or not inspect.iscoroutinefunction(method):
        return False
    return set(_PARAMETERS) <= set(inspect.signature(method).parameters)


class RunAgent:
    """Calls `run_agent` of a user's executor in place of its `execute`.

    Each episode has a shallow copy of the executor, with a client of its own that knows the episode's session, and
    sampling parameters of its own: one object that all episodes write to would mix them up.

    Args:
        executor: The user's.
        path: Its file, for messages.
        sampling: What it is shown of how turns are sampled.
        tokenizer: The model's.
        max_length: Most tokens of a prompt and its answer.
    """

    max_concurrency = None

    def __init__(
        self,
        executor: Any,  # Any: an AgentExecutorBase, of ours or of an installed OpenRLHF
        path: str,
        sampling: SamplingParams,
        tokenizer: "PreTrainedTokenizerBase",
        max_length: int,
    ) -> None:
        self._executor = executor
        self._source = f"{METHOD} of {path!r}"
        self._sampling = sampling
        self._shown = {"hf_tokenizer": tokenizer, "max_length": max_length}
        try:
            import openai
        except ImportError as missing:
            raise MissingPackageError(
                f"{self._source} asks by openai's client: pip install openai ({missing})"
            ) from missing
        self._openai = openai
        self._calls = Calls(_THREADS, "turngym-run-agent")

    async def run(self, task: Task, endpoint: Endpoint) -> dict[str, Any]:
        """Run one episode and return its reward.

        Raises:
            EnvError: The prompt is no text.
            RewardError: No reward came.
        """
        if not isinstance(task.prompt, str):
            raise EnvError(f"{self._source} needs a prompt that is text; for chat give --data.apply_chat_template")
        result = await self._calls.call(
            functools.partial(self._asked, task, endpoint), what=f"{self._source} at task {task.id!r}"
        )
        if not isinstance(result, Mapping) or result.get("reward") is None:
            raise RewardError(f"{self._source} returned {repr(result)[:200]}; wanted a dict with a 'reward'")
        return {"reward": result["reward"], "score": result.get("scores"), "extra_logs": result.get("extra_logs")}

    def tasks(self, split: Split, seed: int) -> Sequence[Task] | None:
        """Return none: they come from a dataset."""
        return None

    def complaints(self) -> list[str]:
        """Return none: what comes of it shows when it runs."""
        return []

    def close(self) -> None:
        """End the loop of coroutines."""
        self._calls.close()

    async def _asked(self, task: Task, endpoint: Endpoint) -> Any:
        async with self._openai.DefaultAsyncHttpxClient() as http:
            client = self._openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, http_client=http)
            own = copy.copy(self._executor)
            vars(own).update(
                self._shown, client=client, model_name=endpoint.model, sampling_params=self._sampling.clone()
            )
            label = "" if task.label is None else task.label
            return await own.run_agent(prompt=task.prompt, label=label, session_id=_session_of(endpoint))


def _session_of(endpoint: Endpoint) -> str:
    return unquote(endpoint.base_url.removesuffix("/v1").rpartition("/")[2])
