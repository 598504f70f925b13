"""The teacher on a real small Ray: each action token gets its own logprob, whatever dies, and every wait has an end."""

import asyncio
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import ray

from turngym.errors import ConfigError, DeadlineError, EngineDeadError, EngineError
from turngym.executors.engines.toy_policy import ToyPolicy
from turngym.executors.fleet.ray_calls import call_all
from turngym.learner import teacher as teacher_module
from turngym.learner.batch import Batch
from turngym.learner.teacher import Teacher

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.timeout(120)]

VOCAB = 50
MASKS = [[0, 1, 1], [0, 0, 1, 0, 1, 0, 0], [0, 1], [0, 0, 0, 0, 0, 1, 1, 1, 0], [0, 0]]


class FakeScoringActor:
    """Scores with the toy policy; `marks` holds a file for each thing that is still to go wrong."""

    def __init__(self, marks: Path, index: int) -> None:
        self._marks, self._index = marks, index
        self._policy = ToyPolicy(VOCAB)
        self._is_dead = False
        self._running = self._most = 0

    async def start(self) -> int:
        return 128

    async def health(self) -> None:
        return None

    async def score(self, token_ids, name: str):
        self._running += 1
        self._most = max(self._most, self._running)
        try:
            return await self._score(token_ids, name)
        finally:
            self._running -= 1

    async def most(self) -> int:
        return self._most

    async def close(self) -> None:
        return None

    async def _score(self, token_ids, name: str):
        if self._is_due("kills the process"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._is_due("stops the process"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._is_due("loses the engine"):
            self._is_dead = True
        if self._is_due("refuses"):
            raise EngineError(f"{name} cannot be scored")
        if (self._marks / "takes long").exists():
            await asyncio.sleep(60)
        await asyncio.sleep(0.01)
        if self._is_dead:
            raise EngineDeadError("vLLM is gone")
        return self._policy.score(token_ids)

    def _is_due(self, mark: str) -> bool:
        try:
            (self._marks / mark).unlink()
        except FileNotFoundError:
            return False
        return True


@pytest.fixture(scope="module", autouse=True)
def small_ray():
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(num_cpus=16, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def make_teacher(tmp_path):
    teachers: list[Teacher] = []
    lines: list[str] = []
    remote = ray.remote(FakeScoringActor)

    def make(*wrong: str, num_engines: int = 2, max_restarts: int = 3, timeout_s: float = 60.0, quiet_s: float = 60.0):
        for mark in wrong:
            (tmp_path / mark).touch()
        teacher = Teacher(
            lambda index: remote.options(num_cpus=1, max_concurrency=100).remote(tmp_path, index),
            num_engines,
            temperature=1.0,
            start_timeout_s=60,
            timeout_s=timeout_s,
            max_restarts=max_restarts,
            say=lines.append,
            quiet_s=quiet_s,
        )
        teachers.append(teacher)
        assert call_all(teacher.begin_start(), 60, "starting") == [128] * num_engines
        return teacher

    yield make
    for teacher in teachers:
        teacher.close()


def wanted(batch: Batch) -> np.ndarray:
    """The toy policy's logprobs, one token at a time."""
    policy, logprobs_N = ToyPolicy(VOCAB), np.zeros(batch.num_tokens, np.float32)
    for place in np.flatnonzero(batch.is_action):
        first = batch.starts[batch.sequence_of_token[place]]
        logprobs_N[place] = policy.score(batch.token_ids[first : place + 1])[-1]
    return logprobs_N


def test_each_action_token_gets_its_logprob_and_all_else_0(make_teacher, make_batch):
    batch = make_batch(MASKS)
    teacher = make_teacher(num_engines=1)
    logprobs_N = teacher.logprobs(batch)
    assert logprobs_N.dtype == np.float32
    np.testing.assert_allclose(logprobs_N, wanted(batch), atol=1e-6)
    assert (logprobs_N[batch.is_action] < 0).all()
    assert (logprobs_N[~batch.is_action] == 0).all()
    assert len(teacher.logprobs(make_batch([]))) == 0


def test_sequences_in_flight_are_bounded_and_reach_all_engines(make_teacher, make_batch, monkeypatch):
    monkeypatch.setattr(teacher_module, "MAX_IN_FLIGHT", 3)
    teacher, batch = make_teacher(), make_batch(MASKS * 8)
    np.testing.assert_allclose(teacher.logprobs(batch), wanted(batch), atol=1e-6)
    assert ray.get([actor.most.remote() for actor in teacher._actors]) == [3, 3]


@pytest.mark.parametrize("wrong", ["kills the process", "loses the engine"])
def test_what_a_dead_engine_lost_is_scored_by_another(make_teacher, make_batch, wrong):
    teacher, batch = make_teacher(wrong), make_batch(MASKS * 4)
    np.testing.assert_allclose(teacher.logprobs(batch), wanted(batch), atol=1e-6)
    assert teacher.num_restarts == 1
    np.testing.assert_allclose(teacher.logprobs(batch), wanted(batch), atol=1e-6)
    assert teacher.num_restarts == 1


def test_an_engine_that_does_not_answer_is_replaced(make_teacher, make_batch):
    teacher, batch = make_teacher("stops the process", quiet_s=1.0), make_batch(MASKS)
    np.testing.assert_allclose(teacher.logprobs(batch), wanted(batch), atol=1e-6)
    assert teacher.num_restarts == 1


def test_engines_are_replaced_only_so_often(make_teacher, make_batch):
    teacher = make_teacher("loses the engine", num_engines=1, max_restarts=0)
    with pytest.raises(EngineDeadError, match=r"teacher engine 0 died .*vLLM is gone.*max_restarts are used up"):
        teacher.logprobs(make_batch(MASKS))


def test_a_sequence_that_cannot_be_scored_is_an_error(make_teacher, make_batch):
    with pytest.raises(EngineError, match=r"teacher/\d cannot be scored"):
        make_teacher("refuses", num_engines=1).logprobs(make_batch(MASKS))


def test_scoring_has_a_deadline(make_teacher, make_batch):
    with pytest.raises(DeadlineError, match=r"no sequence within its deadline of 1\.5 s"):
        make_teacher("takes long", num_engines=1, timeout_s=1.5, quiet_s=0.5).logprobs(make_batch(MASKS))


def test_a_stop_leaves_no_result(make_teacher, make_batch):
    teacher = make_teacher("takes long", num_engines=1)
    threading.Timer(0.5, teacher.request_stop).start()
    assert teacher.logprobs(make_batch(MASKS)) is None  # unheard, it would bring scores, or end by its deadline
    assert teacher.logprobs(make_batch(MASKS)) is None


def test_another_temperature_than_the_teachers_is_refused(make_teacher, make_batch):
    batch = make_batch(MASKS)
    batch.temperatures[batch.is_action] = 0.7
    with pytest.raises(ConfigError, match=r"8 tokens .* temperature 0\.7, and the teacher scores at 1"):
        make_teacher(num_engines=1).logprobs(batch)
