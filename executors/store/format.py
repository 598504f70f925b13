"""A trajectory as plain JSON values and back; token arrays come back bit for bit.

Runs stand for long arrays (`[[turn, length], ...]`), logprobs only for the tokens that have one, as base64 of
little-endian float32: digits would take ten times as long to write. Schema 1 had digits, and said less of the task;
up to schema 2 the engine is not known, and up to schema 3 there were no images (each is kept once, by its digest) and
nothing shaped what is sampled.
"""

import base64
import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Sampling
from ...agents.images import PlacedImage
from ...agents.sequence import NO_VERSION, Sequence
from ...agents.shape import Shape
from ...envs.images import Image
from ...envs.task import Task
from ...errors import TrajectoryError
from ..episodes.branching import Branch
from ..episodes.trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd

SCHEMA = 4
READABLE = (1, 2, 3, 4)
IMAGE = "turngym.image"  # the one key of what stands for an image

Record = dict[str, Any]  # Any: JSON


@dataclass(frozen=True)
class StoredTrajectory:
    """A trajectory and what is known of its origin.

    Attributes:
        step: The step it belongs to.
        env: What `--agent` said; None if it is not known.
        inexact: Which of the task's `prompt`, `label` and `data` hold what JSON has no form for; None if it is not
            known. They come back as lists, text and `repr`.
    """

    step: int
    trajectory: Trajectory
    env: str | None = None
    inexact: tuple[str, ...] | None = None


def to_record(step: int, trajectory: Trajectory, env: str | None = None) -> Record:
    """Return the trajectory as a JSON object, what a person looks for first."""
    task = trajectory.task
    inexact = [name for name in ("prompt", "label", "data") if not _is_exact(getattr(task, name))]
    images: dict[str, Image] = {}
    sequences = [_sequence(sequence, images) for sequence in trajectory.sequences]
    record = {
        "schema": SCHEMA,
        "step": step,
        "task": task.id,
        "attempt": trajectory.attempt,
        "reward": _number(trajectory.reward),
        "score": _number(trajectory.score),
        "end_reason": trajectory.end_reason.value,
        "failure": None if trajectory.failure is None else _failure(trajectory.failure),
        "prompt": plain(task.prompt, images),
        "label": plain(task.label, images),
        "messages": plain(trajectory.messages, images),
        "rewards_per_turn": [_number(reward) for reward in trajectory.rewards_per_turn.tolist()],
        "turn_ends": [end.value for end in trajectory.turn_ends],
        "extra_logs": plain(trajectory.extra_logs),
        "seconds": {stage: _number(round(seconds, 6)) for stage, seconds in trajectory.seconds.items()},
        "earlier_failures": [_failure(failure) for failure in trajectory.earlier_failures],
        "branch_of": trajectory.branch_of,
        "engine": trajectory.engine,
        "seed": task.seed,
        "data": plain(task.data, images),
        "inexact": inexact,
        "env": env,
        "sequences": sequences,
    }
    return {**record, "images": {digest: _image(image) for digest, image in images.items()}} if images else record


def stored_record(stored: StoredTrajectory) -> Record:
    """Return what was read as it is to be written again."""
    record = to_record(stored.step, stored.trajectory, stored.env)
    return {**record, "inexact": None if stored.inexact is None else list(stored.inexact)}


def from_record(record: Record, source: str) -> StoredTrajectory:
    """Return what was stored; `source` names the line in errors.

    Raises:
        TrajectoryError: A newer version wrote it, or it is no trajectory.
    """
    if record.get("schema") not in READABLE:
        raise TrajectoryError(
            f"{source} has schema {record.get('schema')!r}, this version reads {READABLE[0]} to {READABLE[-1]}; "
            "update turngym"
        )
    try:
        inexact = record.get("inexact")
        return StoredTrajectory(
            record["step"],
            _read_trajectory(record),
            record.get("env"),
            None if inexact is None else tuple(inexact),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise TrajectoryError(f"{source} is no trajectory of schema {record['schema']}: {error!r}") from error


def _read_trajectory(record: Record) -> Trajectory:
    images = {digest: _read_image(each) for digest, each in record.get("images", {}).items()}
    prompt, label, data, messages = (
        _with_images(record[name], images) if images else record[name]
        for name in ("prompt", "label", "data", "messages")
    )
    return Trajectory(
        task=Task(record["task"], prompt, label, record["seed"], data),
        attempt=record["attempt"],
        sequences=tuple(_read_sequence(sequence, images) for sequence in record["sequences"]),
        messages=tuple(messages),
        rewards_per_turn=np.asarray([_read_number(reward) for reward in record["rewards_per_turn"]], np.float64),
        turn_ends=tuple(TurnEnd(end) for end in record["turn_ends"]),
        end_reason=EndReason(record["end_reason"]),
        failure=None if record["failure"] is None else _read_failure(record["failure"]),
        score=_read_number(record["score"]),
        extra_logs={name: _read_number(value) for name, value in record["extra_logs"].items()},
        seconds={stage: _read_number(value) for stage, value in record["seconds"].items()},
        earlier_failures=tuple(_read_failure(failure) for failure in record["earlier_failures"]),
        branch_of=_read_branch(record.get("branch_of")),
        engine=record.get("engine"),
    )


def _read_branch(branch: list[int] | None) -> Branch | None:
    return None if branch is None else (branch[0], branch[1])


def _image(image: Image) -> Record:
    return {"width": image.width, "height": image.height, "data": base64.b64encode(image.data).decode()}


def _read_image(record: Record) -> Image:
    return Image(base64.b64decode(record["data"], validate=True), record["width"], record["height"])


def _with_images(value: Any, images: dict[str, Image]) -> Any:
    """Put images back into what was read from JSON."""
    if isinstance(value, list):
        return [_with_images(item, images) for item in value]
    if isinstance(value, dict):
        if value.keys() == {IMAGE}:
            return images[value[IMAGE]]
        return {key: _with_images(item, images) for key, item in value.items()}
    return value


def _sequence(sequence: Sequence, images: dict[str, Image]) -> Record:
    actions = sequence.is_action
    images |= {placed.image.digest: placed.image for placed in sequence.images}
    places = [[placed.image.digest, placed.start, placed.stop, placed.marker] for placed in sequence.images]
    return {
        **({"images": places} if places else {}),
        "token_ids": sequence.token_ids.tolist(),
        "actions": _spans(actions),
        "turn": _runs(sequence.turn),
        "versions": _runs(sequence.versions[actions]),
        "logprobs": base64.b64encode(sequence.logprobs[actions].astype("<f4").tobytes()).decode(),
        "samplings": {str(turn): _sampling(sampling) for turn, sampling in sequence.samplings.items()},
        "parent": sequence.parent,
        "fork_reason": sequence.fork_reason,
    }


def _read_sequence(record: Record, images: dict[str, Image]) -> Sequence:
    places = record.get("images", ())
    token_ids = np.asarray(record["token_ids"], np.int32)
    actions = np.zeros(len(token_ids), np.bool_)
    for start, end in record["actions"]:
        actions[start:end] = True
    logprobs = np.full(len(token_ids), np.nan, np.float32)
    logprobs[actions] = _read_logprobs(record["logprobs"])
    versions = np.full(len(token_ids), NO_VERSION, np.int32)
    versions[actions] = _read_runs(record["versions"])
    return Sequence(
        token_ids=token_ids,
        is_action=actions,
        logprobs=logprobs,
        versions=versions,
        turn=_read_runs(record["turn"]),
        samplings={int(turn): _read_sampling(sampling) for turn, sampling in record["samplings"].items()},
        parent=None if record["parent"] is None else (record["parent"][0], record["parent"][1]),
        fork_reason=record["fork_reason"],
        images=tuple(PlacedImage(images[each], start, stop, tuple(marker)) for each, start, stop, marker in places),
    )


def _read_logprobs(value: str | list[float]) -> NDArray[np.float32]:
    if isinstance(value, list):  # schema 1
        return np.asarray(value, np.float32)
    return np.frombuffer(base64.b64decode(value, validate=True), "<f4").astype(np.float32)


def _sampling(sampling: Sampling) -> Record:
    """Leave out what few turns have: there is one for every turn."""
    record = dataclasses.asdict(sampling)
    return {name: value for name, value in record.items() if value or name not in ("shape", "num_top_logprobs")}


def _read_sampling(record: Record) -> Sampling:
    fields: Record = {**record, "stop": tuple(record["stop"]), "stop_token_ids": tuple(record["stop_token_ids"])}
    if record.get("shape") is not None:
        fields["shape"] = Shape(**record["shape"])
    return Sampling(**fields)


def _runs(array: NDArray[np.int32]) -> list[list[int]]:
    """[[value, length], ...] of equal neighbours."""
    starts = _starts(array)
    lengths = np.append(starts, len(array))[1:] - starts
    runs: list[list[int]] = np.stack([array[starts], lengths], axis=1).tolist()
    return runs


def _read_runs(runs: list[list[int]]) -> NDArray[np.int32]:
    pairs = np.asarray(runs, np.int64).reshape(-1, 2)
    return np.repeat(pairs[:, 0], pairs[:, 1]).astype(np.int32)


def _spans(mask: NDArray[np.bool_]) -> list[list[int]]:
    """[[start, end], ...] of the places where the mask holds."""
    starts = _starts(mask)
    ends = np.append(starts, len(mask))[1:]
    spans: list[list[int]] = np.stack([starts, ends], axis=1)[mask[starts]].tolist()
    return spans


def _starts(array: NDArray[Any]) -> NDArray[np.int64]:
    """Where runs of equal values begin."""
    if len(array) == 0:
        return np.empty(0, np.int64)
    return np.concatenate([[0], np.flatnonzero(array[1:] != array[:-1]) + 1]).astype(np.int64)


def _failure(failure: Failure) -> Record:
    return {"kind": failure.kind.value, "message": failure.message, "turn": failure.turn}


def _read_failure(record: Record) -> Failure:
    return Failure(FailureKind(record["kind"]), record["message"], record["turn"])


def _number(value: float | None) -> float | str | None:
    """JSON has no NaN and no infinity; they are written as strings."""
    return value if value is None or math.isfinite(value) else str(value)


def _read_number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def plain(value: Any, images: dict[str, Image] | None = None) -> Any:
    """Return what a dataset or an environment holds in JSON's terms; what has no form there, as its repr.

    Args:
        value: Anything.
        images: Where images are put, by their digest, which then stands for them.
    """
    if isinstance(value, Image) and images is not None:
        images[value.digest] = value
        return {IMAGE: value.digest}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist(), images)
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): plain(item, images) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, images) for item in value]
    return repr(value)


def _is_exact(value: Any) -> bool:
    """Say whether a value comes back from JSON as it is."""
    if isinstance(value, list):
        return all(map(_is_exact, value))
    if type(value) is dict:
        return all(type(key) is str and _is_exact(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, str, Image) or (type(value) is float and math.isfinite(value))
