"""What a schedule says of a run, and files that nobody can follow."""

import json
from dataclasses import replace

import numpy as np
import pytest

from turngym.agents.base import Completion, Sampling, StopReason
from turngym.agents.sequence import Sequence, SequenceBuilder
from turngym.envs.task import Task
from turngym.errors import ConfigError, ScheduleError
from turngym.executors.episodes.trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd
from turngym.executors.rollouts.buffer import Finished, Group
from turngym.executors.rollouts.draws import Draw
from turngym.executors.rollouts.schedule import check_followed, read_schedule, step_record, to_row, turn_versions

from ..attempts import BROKEN, attempt

TASK = Task(id="a")


def episode(*turns: list[int]) -> Trajectory:
    """An attempt whose turns were sampled by these versions, one for each token."""
    whole = attempt(TASK, 0)
    return replace(whole, sequences=(sequence(dict(enumerate(turns))),), turn_ends=(TurnEnd.STOP,) * len(turns))


def sequence(turns: dict[int, list[int]]) -> Sequence:
    builder = SequenceBuilder()
    builder.add_context([1], -1)
    for turn, versions in turns.items():
        ids, logprobs = np.arange(len(versions), dtype=np.int32), np.full(len(versions), -1, np.float32)
        completion = Completion(ids, logprobs, np.asarray(versions, np.int32), StopReason.STOP)
        builder.add_completion(completion, Sampling(4), turn)
        builder.add_context([2], turn)
    return builder.build()


def finished(*attempts: Trajectory, began: int = 0) -> Finished:
    return Finished(Draw(5, TASK), Group(TASK, tuple(attempts)), began)


def test_the_versions_of_turns():
    assert turn_versions(episode([3, 3], [3], [4, 4, 4]), 3) == ((3, 3, 4), False)
    assert turn_versions(episode([3, 4], [4]), 3) == ((3, 4), True)
    assert turn_versions(episode([], [4], []), 2) == ((2, 4, 4), False)  # no token, no version
    # Turn 1 branched off into a sequence of its own.
    both = replace(episode([3], [3], [4]), sequences=(sequence({0: [3], 2: [4]}), sequence({1: [3]})))
    assert turn_versions(both, 3) == ((3, 3, 4), False)


def test_a_step_as_a_line_and_back(tmp_path):
    broken = replace(episode([3], [5]), attempt=1, end_reason=EndReason.FAILED, failure=BROKEN)
    stale = replace(broken, attempt=2, failure=Failure(FailureKind.STALE, "old", 1))
    record = step_record(1, 6, [[finished(stale, episode([3], [3], [4]), broken, began=3)], []])
    row = {
        "step": 1,
        "version": 6,
        # What was too old when it was taken failed in no other way.
        "takes": [
            [
                {
                    "serial": 5,
                    "task": "a",
                    "began": 3,
                    "turns": [[[3, 2], [4, 1]], [[3, 1], [5, 1]], [[3, 1], [5, 1]]],
                    "failed": [1],
                }
            ],
            [],
        ],
    }
    assert to_row(record) == row
    (tmp_path / "schedule.jsonl").write_text(json.dumps(row) + "\n")
    assert read_schedule(tmp_path / "schedule.jsonl").steps == (record,)


ROW = to_row(step_record(1, 0, [[finished(episode([0]))]]))
SPANNING = to_row(step_record(1, 1, [[finished(episode([0, 1]))]]))
EARLY = to_row(step_record(1, 0, [[finished(episode([0]), began=1)]]))
LATE = to_row(step_record(1, 0, [[finished(episode([1]))]]))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "has no steps"),
        (["{"], "schedule.jsonl:1 is no step of a schedule"),
        ([json.dumps({"step": 1})], "schedule.jsonl:1 is no step of a schedule .*version|takes"),
        ([json.dumps(ROW), json.dumps(ROW)], "are not 1, 2, 3"),
        ([json.dumps(ROW), json.dumps(ROW | {"step": 2})], "a serial twice"),
        ([json.dumps(SPANNING)], "at step 1 serial 5 has a turn whose tokens are of several versions"),
        ([json.dumps(EARLY)], "at step 1, serial 5, turns sampled before version 1"),
        ([json.dumps(LATE)], "at step 1, serial 5, turns .* or after 0, at which it was taken"),
    ],
)
def test_files_that_cannot_be_followed(tmp_path, lines, message):
    file = tmp_path / "schedule.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(ConfigError, match=message):
        read_schedule(file)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"schedule .*nowhere' cannot be read: No such file"):
        read_schedule(tmp_path / "nowhere")


def test_an_attempt_is_held_against_its_record():
    ((group,),) = step_record(4, 6, [[finished(episode([3], [4]), began=3)]]).takes
    check_followed(4, group, episode([3, 3], [4]))
    where = "at step 4, serial 5, attempt 0, turn"
    with pytest.raises(ScheduleError, match=rf"{where} 1: .* were \[3, 4] then, and are \[3, 5] now"):
        check_followed(4, group, episode([3], [5]))
    with pytest.raises(ScheduleError, match=rf"{where} 1: .* were \[3, 4] then, and are \[3] now"):
        check_followed(4, group, episode([3]))
    failed = replace(episode([3], [4]), end_reason=EndReason.FAILED, failure=BROKEN)
    with pytest.raises(ScheduleError, match=rf"{where} 2: it failed now and not then: env: broken"):
        check_followed(4, group, failed)
    with pytest.raises(ScheduleError, match="it failed then, and not now"):
        check_followed(4, replace(group, failed=(0,)), episode([3], [4]))
