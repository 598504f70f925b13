"""Calls into other processes of a run: their results within a deadline, or an error of ours that says what was done."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from ...errors import DeadlineError, EngineDeadError, TurnGymError, WorkerError

_CREATION = "error raised in its creation task"


def call_all(calls: Sequence[Any], timeout_s: float, what: str) -> list[Any]:  # Any: Ray's handles have no types
    """Return the results of Ray calls, or raise within the deadline, naming what was being done.

    Raises:
        DeadlineError: Not all calls ended in time.
        WorkerError: A process died, or failed for a reason that is none of our errors.
        TurnGymError: What a call raised, if it is ours.
    """
    deadline = time.monotonic() + timeout_s
    pending = list(calls)
    # One at a time, so that the first failure shows at once and not after the slowest call.
    while pending:
        done, pending = ray.wait(pending, num_returns=1, timeout=max(deadline - time.monotonic(), 0.0))
        if not done:
            raise DeadlineError(f"{what} took longer than its deadline of {timeout_s} s")
        try:
            ray.get(done[0])
        except RayError as error:
            place = f"process {calls.index(done[0])} of {len(calls)}" if len(calls) > 1 else "its process"
            raise from_ray(error, what, place) from error
    return list(ray.get(list(calls)))


def answers(calls: Mapping[int, Any], timeout_s: float, what: str) -> dict[int, Any]:
    """Return what each call gave within the deadline; where it gave nothing or failed, an error stands in its place."""
    given: dict[int, Any] = {}
    done, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=timeout_s) if calls else ([], [])
    for name, call in calls.items():
        if call not in done:
            given[name] = DeadlineError(f"{what} took longer than its deadline of {timeout_s:g} s")
            continue
        try:
            given[name] = ray.get(call)
        except RayError as error:
            given[name] = from_ray(error, what, "its process")
        except Exception as error:  # of reading what it gave, which may be of a class that is not known here
            given[name] = WorkerError(f"{what} gave what cannot be read: {error!r}")
    return given


def from_ray(error: RayError, what: str, place: str) -> TurnGymError:
    """Return the error of a remote call as one of ours, in one line."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, TurnGymError):
        return cause
    if isinstance(error, RayTaskError):
        return WorkerError(f"{what} failed in {place}: {type(cause).__name__}: {first_line(cause or error)}")
    if isinstance(error, RayActorError) and _CREATION in str(error):  # what its __init__ raised ends the message
        return WorkerError(f"{what} failed in {place}: {str(error).strip().splitlines()[-1]}")
    return WorkerError(f"{what} failed, since {place} died: {first_line(error)}")


def death_of(error: RayError) -> str | None:
    """Return how the engine behind a call died; None when it lives and the call failed for another reason."""
    if isinstance(error, RayActorError):
        return f"its process ended: {first_line(error)}"
    cause = getattr(error, "cause", None)
    return str(cause) if isinstance(cause, EngineDeadError) else None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
