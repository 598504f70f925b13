"""Observations, tasks, actions and failures as JSON, the same on both ends."""

import json
from collections.abc import Mapping
from typing import Any

from ... import errors
from ...errors import EnvError, TurnGymError
from ..base import Action
from ..messages import Observation, RawText, as_messages
from ..task import Task
from ..tools.calls import ParsedAnswer, ToolCall

Json = Any  # what `json.loads` gives

KEY_VARIABLE = "TURNGYM_ENV_KEY"


class BadRequestError(EnvError):
    """A request that the protocol does not know, or that comes at the wrong time."""


def encoded(value: Json) -> bytes:
    """Return JSON; the single numbers of numpy and torch are numbers.

    Raises:
        EnvError: It holds what JSON has no form for; in another form a label would not be what it was.
    """
    try:
        return json.dumps(value, default=_number, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvError(f"this cannot go over HTTP, since JSON has no form for it: {error}") from error


def _number(value: object) -> Json:
    item = getattr(value, "item", None)
    if callable(item):
        return item()
    raise TypeError(f"{value!r:.100} of type {type(value).__name__}")


def observation_to_json(observation: Observation) -> Json:
    """Return an observation as JSON: text, a list of messages, or `{"raw_text": ...}`."""
    return {"raw_text": str(observation)} if isinstance(observation, RawText) else observation


def observation_of(value: Json, source: str) -> Observation:
    """Return the observation that JSON holds.

    Raises:
        EnvError: It holds none.
    """
    if isinstance(value, dict) and isinstance(value.get("raw_text"), str):
        return RawText(value["raw_text"])
    if not isinstance(value, str):
        as_messages(value, source)
    return value  # type: ignore[no-any-return]  # it is one of the forms by now


def task_to_json(task: Task) -> Json:
    """Return a task as JSON."""
    return {
        "id": task.id,
        "prompt": task.prompt,
        "label": task.label,
        "seed": task.seed,
        "data": dict(task.data),
    }


def task_of(value: Json) -> Task:
    """Return the task that JSON holds.

    Raises:
        BadRequestError: It holds none.
    """
    prompt, seed, data = (
        (value.get(key) for key in ("prompt", "seed", "data")) if isinstance(value, dict) else [None] * 3
    )
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        raise BadRequestError(
            f'wanted a task, {{"id": "...", "prompt": ..., "label": ..., "seed": ...}}, got {value!r:.200}'
        )
    if not isinstance(prompt, str | list | None) or not isinstance(seed, int | None):
        raise BadRequestError(
            f"a task's prompt is text or messages and its seed a whole number, got {prompt!r:.200}, {seed!r}"
        )
    return Task(value["id"], prompt, value.get("label"), seed, data if isinstance(data, Mapping) else {})


def action_to_json(action: str) -> Json:
    """Return an action as JSON."""
    if not isinstance(action, Action):
        return {"text": str(action)}
    told = {"text": str(action), "raw": action.raw, "query": action.query, "is_cut": action.is_cut}
    if action.parsed is None:
        return told
    calls = [
        {"name": call.name, "arguments": dict(call.arguments), "problem": call.problem, "id": call.id}
        for call in action.parsed.calls
    ]
    return {**told, "parsed": {"content": action.parsed.content, "calls": calls}}


def action_of(value: Json) -> Action:
    """Return the action that JSON holds; plain text is one.

    Raises:
        BadRequestError: It holds none.
    """
    if isinstance(value, str):
        return Action(value)
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise BadRequestError(f'wanted an action, text or {{"text": "..."}}, got {value!r:.200}')
    try:
        parsed = value.get("parsed")
        answer = parsed and ParsedAnswer(parsed["content"], tuple(ToolCall(**call) for call in parsed["calls"]))
    except (KeyError, TypeError) as error:
        raise BadRequestError(f"the calls of an action cannot be read: {error!r}") from error
    return Action(
        value["text"],
        raw=value.get("raw"),
        query=value.get("query"),
        is_cut=bool(value.get("is_cut")),
        parsed=answer or None,
    )


def failure_to_json(error: BaseException) -> Json:
    """Return an error as JSON: its class by name, and what it says."""
    return {"error": {"type": type(error).__name__, "message": str(error) or repr(error)}}


def failure_of(value: Json, source: str) -> TurnGymError:
    """Return the error that JSON holds, of the same class if it is one of ours, else an `EnvError`."""
    told = value.get("error") if isinstance(value, dict) else None
    if not isinstance(told, dict):
        return EnvError(f"{source}: {value!r:.500}")
    kind = getattr(errors, str(told.get("type")), None)
    if isinstance(kind, type) and issubclass(kind, TurnGymError):
        return kind(f"{source}: {told.get('message')}")
    return EnvError(f"{source}: {told.get('type')}: {told.get('message')}")
