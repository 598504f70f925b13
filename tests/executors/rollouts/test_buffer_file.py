"""What waits for the learner comes back from a checkpoint bit for bit, or not at all."""

from dataclasses import replace

import numpy as np
import pytest

from turngym.envs.task import Task
from turngym.errors import CheckpointError
from turngym.executors.episodes.trajectory import Failure, FailureKind
from turngym.executors.rollouts.buffer import Finished, Group
from turngym.executors.rollouts.buffer_file import FINISHED, read_finished, write_finished
from turngym.executors.rollouts.draws import Draw
from turngym.executors.store.format import to_record

from ..attempts import attempt

DRAWS = {serial: Draw(serial, Task(id=f"täsk {serial % 2}", data={"object": object})) for serial in (3, 4, 7)}


def finished(serial: int) -> Finished:
    draw = DRAWS[serial]
    odd = replace(
        attempt(draw.task, 5, [serial, serial + 1]),
        rewards_per_turn=np.array([0.1 + 0.2]),
        extra_logs={"half": 0.5, "nothing": float("nan")},
        messages=({"role": "assistant", "content": "half a \ud83d"},),
        earlier_failures=(Failure(FailureKind.GRADER, "no verdict", 1),),
    )
    failed = attempt(draw.task, 2, [serial], Failure(FailureKind.LOST, "with its engine", -1))
    return Finished(draw, Group(draw.task, (failed, odd)), began=serial - 1)


@pytest.fixture
def written(tmp_path):
    path = tmp_path / FINISHED
    write_finished(path, [finished(serial) for serial in DRAWS])
    return path


def test_groups_come_back_as_they_were(written):
    groups = read_finished(written, DRAWS.__getitem__)
    assert [(one.draw, one.began) for one in groups] == [(DRAWS[serial], serial - 1) for serial in DRAWS]
    for one in groups:
        for back, true in zip(one.group.trajectories, finished(one.draw.serial).group.trajectories, strict=True):
            assert back.task is one.draw.task  # objects in it are the run's, not what JSON made of them
            assert to_record(0, back) == to_record(0, true)
            for name in ("token_ids", "is_action", "logprobs", "versions", "turn"):
                arrays = [getattr(t.sequences[0], name) for t in (back, true)]
                assert arrays[0].dtype == arrays[1].dtype
                assert arrays[0].tobytes() == arrays[1].tobytes()
            assert back.rewards_per_turn.tobytes() == true.rewards_per_turn.tobytes()


def test_nothing_is_a_file_too(tmp_path):
    write_finished(tmp_path / FINISHED, [])
    assert read_finished(tmp_path / FINISHED, DRAWS.__getitem__) == []


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_an_error_that_names_it(written, share):
    whole = written.read_bytes()
    written.write_bytes(whole[: int(share * len(whole))])
    if share == 0.0:  # gzip takes an empty file for an empty text; the checkpoint's list of sizes knows better
        assert read_finished(written, DRAWS.__getitem__) == []
        return
    with pytest.raises(CheckpointError, match=rf"{FINISHED} cannot be read .* go on from the one before"):
        read_finished(written, DRAWS.__getitem__)


def test_a_file_that_is_gone_is_an_error_that_names_it(tmp_path):
    with pytest.raises(CheckpointError, match=rf"{FINISHED} cannot be read \(FileNotFoundError"):
        read_finished(tmp_path / FINISHED, DRAWS.__getitem__)
