"""`openenv/URL`: an environment behind an OpenEnv server (package `openenv-core`), such as `openenv/http://host:8000`.

Actions and observations there are JSON objects of the server's own making. One field of the action takes what the model
wrote, one or all fields of the observation are shown.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

from ...errors import ConfigError, EnvError, RewardError, ToolServerError
from ..base import AsyncEnv, StepResult
from ..registration import Collection
from ..task import Task
from .extras import import_extra

_NOT_SHOWN = ("done", "reward", "metadata")
_REFUSED = "code: VALIDATION_ERROR"
_NO_SESSION = "step was called with no episode running; call reset first"


class OpenEnv(AsyncEnv):
    """One session of an OpenEnv server for each episode, over its WebSocket.

    Args:
        url: The server, `http://...` or `https://...`.
        action_key: The field of the action that takes the model's text; by default the only one that must be given and
            is text. `""`: the model writes the whole action as a JSON object.
        observation_key: The field of the observation that is shown; by default all of it, as JSON where it has several.
        max_steps: The episode is truncated after so many; None leaves it to the server and the run.
        timeout_s: Deadline of one answer of the server.
        **reset_options: Given to the server at each reset, beside the seed.
    """

    def __init__(
        self,
        url: str,
        *,
        action_key: str | None = None,
        observation_key: str | None = None,
        max_steps: int | None = None,
        timeout_s: float = 60.0,
        **reset_options: Any,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"openenv/... wants the URL of a server, such as openenv/http://localhost:8000, got {url!r}"
            )
        self._url = url.rstrip("/")
        self._client_class = import_extra("openenv.core.generic_client", "openenv", "openenv").GenericEnvClient
        self._action_key = action_key
        self._observation_key = observation_key
        self._max_steps = max_steps
        self._timeout_s = timeout_s
        self._reset_options = reset_options
        self._client: Any = None  # Any: the package's, which has no types to speak of
        self._steps = 0

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Open a session and reset it with the task's seed."""
        task = (options or {}).get("task")
        seed = task.seed if isinstance(task, Task) else seed
        await self.close()
        if self._action_key is None:
            self._action_key = await self._only_text_field()
        self._client = self._client_class(
            base_url=self._url, connect_timeout_s=self._timeout_s, message_timeout_s=self._timeout_s
        )
        self._steps = 0
        seeded = {} if seed is None else {"seed": seed}
        result = await self._ask(self._client.reset(**seeded, **self._reset_options))
        return self._shown(result.observation), {}

    async def step(self, action: str) -> StepResult:
        """Send the action; one that is no JSON object where it must be is told so, and no failure."""
        if self._client is None:
            raise EnvError(f"openenv/{self._url}: {_NO_SESSION}")
        self._steps += 1
        is_last = self._max_steps is not None and self._steps >= self._max_steps
        payload = self._payload(str(action))
        if isinstance(payload, str):
            return payload, 0.0, False, is_last, {}
        try:
            result = await self._ask(self._client.step(payload))
        except ToolServerError as error:
            if self._action_key or _REFUSED not in str(error):
                raise
            return f"Error: {error.__cause__}", 0.0, False, is_last, {}  # the model wrote it, and may mend it
        reward = 0.0 if result.reward is None and not result.done else result.reward
        if reward is None:
            raise RewardError(f"openenv/{self._url} ended an episode without a reward; None is not 0")
        done = bool(result.done)
        return self._shown(result.observation), float(reward), done, is_last and not done, {}

    async def close(self) -> None:
        """End the session."""
        client, self._client = self._client, None
        if client is not None:
            await client.disconnect()

    async def _ask(self, asking: Any) -> Any:
        try:
            return await asking
        except Exception as error:  # of the package, of its sockets, and what the server says in words
            raise ToolServerError(f"openenv/{self._url} gave no answer: {type(error).__name__}: {error}") from error

    async def _only_text_field(self) -> str:
        """Return the one field of the server's actions that must be given and is text."""
        try:
            async with httpx.AsyncClient(timeout=self._timeout_s) as client:
                schema = (await client.get(f"{self._url}/schema")).raise_for_status().json()["action"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise ToolServerError(f"openenv/{self._url} tells no schema: {type(error).__name__}: {error}") from error
        fields: Mapping[str, Any] = schema.get("properties", {})
        required = [name for name in schema.get("required", []) if fields.get(name, {}).get("type") == "string"]
        if len(required) != 1:
            raise ConfigError(
                f"openenv/{self._url}: actions have the fields {', '.join(fields)}; say which takes the text with "
                "--agent_args.action_key, or '' for an action that the model writes as JSON"
            )
        return str(required[0])

    def _payload(self, action: str) -> dict[str, Any] | str:
        """Return the action to send, or what the model is told where it wrote none."""
        if self._action_key:
            return {self._action_key: action}
        try:
            found = json.loads(action[action.index("{") : action.rindex("}") + 1])
        except (ValueError, RecursionError) as error:
            return f"Error: that is no JSON object ({error}). Write the action as one."
        return found if isinstance(found, dict) else "Error: that is no JSON object. Write the action as one."

    def _shown(self, observation: Mapping[str, Any]) -> str:
        if self._observation_key is not None:
            if self._observation_key not in observation:
                raise EnvError(
                    f"openenv/{self._url}: observations have no {self._observation_key!r}; they have "
                    f"{', '.join(observation)}"
                )
            found = observation[self._observation_key]
            return found if isinstance(found, str) else json.dumps(found)
        fields = {key: value for key, value in observation.items() if key not in _NOT_SHOWN}
        values = list(fields.values())
        return values[0] if len(values) == 1 and isinstance(values[0], str) else json.dumps(fields)


def _names() -> Iterable[str]:
    return ["http://HOST:PORT"]


COLLECTION = Collection(target=f"{__name__}:OpenEnv", parameter="url", names=_names, is_open=True)
