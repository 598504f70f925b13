"""`ServedEnv`: an environment on another machine, behind `turngym envs serve`."""

import contextlib
import json
import os
from collections.abc import Sequence
from typing import Any

import httpx

from ...errors import ConfigError, EnvError, ToolServerError, TurnGymError
from ..base import AsyncEnv, StepResult
from ..messages import Observation
from ..task import LazyTasks, Split, Task
from ..tools.http_calls import HttpAnswer, HttpRequest, ask
from ..tools.http_client import ClientUse
from .wire import KEY_VARIABLE, Json, action_to_json, encoded, failure_of, observation_of, task_to_json

_CLOSE_TIMEOUT_S = 5.0
_PLACE = "served_task"  # of a task's data: which of the server's own it is


class ServedEnv(AsyncEnv):
    """Plays episodes of an environment that another process serves over HTTP.

    A task of a dataset is sent with its label; the server's own tasks are named by their index. Steps bear their turn's
    number, so that one whose answer was lost is asked again without being taken twice. What fails on the server is the
    same failure here; a server that is down or has forgotten the session fails the episode.

    Args:
        url: Of the server.
        key: The server's; by default the environment variable TURNGYM_ENV_KEY.
        wants_query: Send the whole text of the episode along, for environments that ask for it.
        call_timeout_s: Deadline of one reset or step, repetitions included.
    """

    def __init__(
        self, url: str, key: str | None = None, wants_query: bool = False, call_timeout_s: float = 55.0
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"ServedEnv wants url as http://... or https://..., got {url!r}")
        key = os.environ.get(KEY_VARIABLE) if key is None else key
        if not key:
            raise ConfigError(f"ServedEnv wants the server's key, as key or in the environment variable {KEY_VARIABLE}")
        self.wants_query = wants_query  # type: ignore[misc]  # what is a class's own elsewhere is the server's here
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"}
        self._timeout_s = call_timeout_s
        self._use = ClientUse()
        self._session: str | None = None
        self._turn = 0

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """Return the server's own tasks, each known by its place."""
        url, params = f"{self._url}/tasks", {"split": split, "seed": seed}
        try:
            answer = httpx.get(url, params=params, headers=self._headers, timeout=self._timeout_s)
        except httpx.HTTPError as error:
            raise ToolServerError(f"{url}: {type(error).__name__}: {error}; is the server up?") from error
        told = _read(url, answer.status_code, answer.content)

        def make(index: int) -> Task:
            place = {"split": split, "seed": seed, "index": index}
            return Task(id=f"served/{split}/{seed}/{index}", data={_PLACE: place})

        return LazyTasks(int(told["size"]), make)

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode on the server."""
        await self._leave()
        task = (options or {}).get("task")
        place = task.data.get(_PLACE) if isinstance(task, Task) else None
        sent = place or (task_to_json(task) if isinstance(task, Task) else None)
        told = await self._ask("/reset", {"task": sent, "seed": seed})
        self._session, self._turn = str(told["session_id"]), 0
        return observation_of(told["observation"], self._url), told["info"]

    async def step(self, action: str) -> StepResult:
        """Let the server answer the action."""
        if self._session is None:
            raise EnvError("ServedEnv.step was called with no episode running; call reset first")
        body = {"session_id": self._session, "turn": self._turn, "action": action_to_json(action)}
        told = await self._ask("/step", body, is_repeatable=True)
        self._turn += 1
        observation = observation_of(told["observation"], self._url)
        return observation, told["reward"], told["terminated"], told["truncated"], told["info"]

    async def close(self) -> None:
        """End the session on the server, and let go of the client."""
        try:
            await self._leave()
        finally:
            await self._use.close()

    async def _leave(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        with contextlib.suppress(TurnGymError, TimeoutError):  # its lease ends it
            await self._ask("/close", {"session_id": session}, is_repeatable=True, timeout_s=_CLOSE_TIMEOUT_S)

    async def _ask(
        self, path: str, body: Json, *, is_repeatable: bool = False, timeout_s: float | None = None
    ) -> dict[str, Any]:
        url = self._url + path
        request = HttpRequest("POST", url, headers=self._headers, body=encoded(body), is_repeatable=is_repeatable)
        answer: HttpAnswer = await ask(self._use.client, request, timeout_s or self._timeout_s, may_fail=True)
        return _read(url, answer.status, answer.body)


def _read(url: str, status: int, body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body)
    except ValueError as error:
        raise ToolServerError(f"{url} answers {status} and no JSON: {body[:200]!r}; is it an environment?") from error
    if status >= 400:
        raise failure_of(told, url)
    if not isinstance(told, dict):
        raise ToolServerError(f"{url} answers a {type(told).__name__}; is it an environment?")
    return told
