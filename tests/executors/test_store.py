import json
import logging

import numpy as np
import pytest

from turngym.agents.base import Completion, Sampling, StopReason
from turngym.agents.sequence import SequenceBuilder
from turngym.envs.task import Task
from turngym.errors import TrajectoryError
from turngym.executors.store import TrajectoryStore
from turngym.executors.trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd


def sequence(rng, turns=3, parent=None):
    builder = SequenceBuilder(parent=parent, fork_reason="thinking stripped" if parent else None)
    builder.add_context(rng.integers(0, 50_000, 5), -1)
    for turn in range(turns):
        count = int(rng.integers(0, 6))
        logprobs = -np.exp(rng.normal(-3, 4, count)).astype(np.float32)
        ids = rng.integers(0, 50_000, count, dtype=np.int32)
        versions = rng.integers(0, 3, count, dtype=np.int32)
        sampling = Sampling(count + 1, stop=("###",), stop_token_ids=(7,), temperature=0.7, seed=2**62 + turn)
        builder.add_completion(Completion(ids, logprobs, versions, StopReason.STOP), sampling, turn)
        builder.add_context(rng.integers(0, 50_000, 2), turn)
    return builder.build()


def trajectory(seed=0, **changes):
    rng = np.random.default_rng(seed)
    fields = {
        "task": Task(id="t/1", prompt=[{"role": "user", "content": "2+2?"}], label=4, seed=3, data={"level": 2}),
        "attempt": seed,
        "sequences": (sequence(rng), sequence(rng, parent=(0, 5)), SequenceBuilder().build()),
        "messages": ({"role": "user", "content": "naïve 日本\u2028"}, {"role": "assistant", "content": "4"}),
        "rewards_per_turn": np.array([0.1, -0.0, 1 / 3]),
        "turn_ends": (TurnEnd.STOP, TurnEnd.TURN_TOKENS, TurnEnd.EPISODE_TOKENS),
        "end_reason": EndReason.MAX_TOKENS,
        "score": 0.0,
        "extra_logs": {"acc": 1.0},
        "seconds": {"generate": 1.5, "total": 2.0},
        "earlier_failures": (Failure(FailureKind.ENV, "down", -1),),
    }
    return Trajectory(**fields | changes)


def assert_same(a, b, nan_equal):
    for field in ("task", "attempt", "messages", "turn_ends", "end_reason", "failure", "score", "extra_logs"):
        assert getattr(a, field) == getattr(b, field), field
    assert a.seconds == b.seconds
    assert a.earlier_failures == b.earlier_failures
    assert nan_equal(a.rewards_per_turn, b.rewards_per_turn)
    assert len(a.sequences) == len(b.sequences)
    for one, other in zip(a.sequences, b.sequences, strict=True):
        for array in ("token_ids", "is_action", "logprobs", "versions", "turn"):
            assert nan_equal(getattr(one, array), getattr(other, array)), array
        assert (one.samplings, one.parent, one.fork_reason) == (other.samplings, other.parent, other.fork_reason)


def test_what_is_written_is_read_bit_for_bit(tmp_path, nan_equal):
    failure = Failure(FailureKind.REWARD, "reward is nan", 1)
    written = [trajectory(seed) for seed in range(20)]
    written.append(
        trajectory(20, end_reason=EndReason.FAILED, failure=failure, rewards_per_turn=np.array([np.nan, np.inf]))
    )
    store = TrajectoryStore(tmp_path / "trajectories")
    store.write(3, written[:10])
    store.write(12, written[10:])
    read = list(store.read())
    assert [stored.step for stored in read] == [3] * 10 + [12] * 11
    for one, other in zip(written, read, strict=True):
        assert_same(one, other.trajectory, nan_equal)


def test_a_line_can_be_read_by_eye(tmp_path):
    path = TrajectoryStore(tmp_path).write(1, [trajectory()])
    (line,) = path.read_bytes().splitlines()
    record = json.loads(line)
    assert list(record)[:6] == ["schema", "step", "task", "attempt", "reward", "score"]
    assert list(record)[-1] == "sequences"
    assert "naïve 日本".encode() in line
    assert record["end_reason"] == "max_tokens"
    assert record["sequences"][0]["turn"][0] == [-1, 5]


def test_a_line_cut_off_by_a_crash_is_reported_and_skipped(tmp_path, caplog, nan_equal):
    store = TrajectoryStore(tmp_path)
    path = store.write(1, [trajectory(0), trajectory(1)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])  # the second line is half there
    with caplog.at_level(logging.WARNING):
        read = list(store.read())
    assert [stored.trajectory.attempt for stored in read] == [0]
    assert f"{path}:2" in caplog.text
    store.write(1, [trajectory(2)])  # does not stick to the broken line
    read = list(store.read())
    assert [stored.trajectory.attempt for stored in read] == [0, 2]
    assert_same(read[1].trajectory, trajectory(2), nan_equal)


def test_what_json_has_no_form_for_stays_readable(tmp_path):
    label = {"answer": np.int64(4), "image": object, 5: (1.5, float("nan"))}
    odd = trajectory(task=Task(id="half \ud83d pair", prompt="\ud83d", label=label))
    store = TrajectoryStore(tmp_path)
    store.write(1, [odd])
    (read,) = store.read()
    assert read.trajectory.task.id == "half \ud83d pair"
    assert read.trajectory.task.label == {"answer": 4, "image": "<class 'object'>", "5": [1.5, "nan"]}


def test_a_newer_format_is_refused(tmp_path):
    store = TrajectoryStore(tmp_path)
    path = store.write(1, [trajectory()])
    path.write_bytes(path.read_bytes().replace(b'"schema": 1', b'"schema": 99'))
    with pytest.raises(TrajectoryError, match="schema 99"):
        list(store.read())


def test_an_empty_folder_holds_nothing(tmp_path):
    assert list(TrajectoryStore(tmp_path / "absent").read()) == []
