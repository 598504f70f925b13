"""Publishing weights: every engine gets every bucket under one version, also one that replaces a dead one."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from turngym.errors import WeightSyncError
from turngym.executors.engines.base import UpdateMode
from turngym.executors.engines.weights import Bucket
from turngym.executors.fleet.fleet_engine import EngineRef
from turngym.learner.weight_sync import WeightSync


class FakeRanks:
    """Two buckets; logprobs are -1 under the true weights and -3 under the perturbed ones."""

    def __init__(self) -> None:
        self.is_perturbed = False

    def plan_export(self, dtype: str) -> int:
        return 2

    def export(self, index: int, timeout_s: float) -> Bucket:
        return Bucket((), "shm", self.is_perturbed, checksum=100 + index)

    def scale_weights(self, *, undo: bool) -> None:
        self.is_perturbed = not undo

    def scores(self, batches: Sequence[Any], role: str) -> list[np.ndarray]:
        return [np.full(batch.num_tokens, -3.0 if self.is_perturbed else -1.0, np.float32) for batch in batches]


class FakeFleet:
    """Engines that remember what they were called with; engine 1 may die in one method, once."""

    def __init__(self, dies_in: str | None = None, corrupts: int | None = None) -> None:
        self.calls: list[tuple[EngineRef, str]] = []
        self.versions = {0: 0, 1: 0}
        self.seen: list[int] = []  # versions, as they came
        self.has_perturbed = {0: False, 1: False}
        self.max_seen = 0
        self._dies_in, self._corrupts = dies_in, corrupts
        self.started = [EngineRef(0, 0), EngineRef(1, 0)]
        self.bare: list[EngineRef] = []

    def call(
        self, engines: Sequence[EngineRef], method: str, *arguments: Any, timeout_s: float, what: str
    ) -> dict[EngineRef, Any]:
        answers: dict[EngineRef, Any] = {}
        for engine in engines:
            if engine not in self.started:
                continue
            if engine.index == 1 and method == self._dies_in:
                self._dies_in = None
                self.bare = [EngineRef(1, 1)]  # another is there at once, and has no weights
                self.started = [EngineRef(0, 0), *self.bare]
                continue
            self.calls.append((engine, method))
            answers[engine] = self._answer(engine.index, method, *arguments)
        return answers

    def equip(self, engines: Any) -> None:
        self.bare = [engine for engine in self.bare if engine not in engines]

    def _answer(self, index: int, method: str, *arguments: Any) -> Any:
        if method == "load_bucket":
            self.has_perturbed[index] = arguments[0].handle
            return arguments[0].checksum + (1 if index == self._corrupts else 0)
        if method == "finish_update":
            self.versions[index] = arguments[0]
            self.seen.append(arguments[0])
            return arguments[0]
        if method == "sample":
            prompt_ids, sampling = arguments
            self.max_seen = max(self.max_seen, len(prompt_ids) + sampling.max_tokens)
            value = -3.0 if self.has_perturbed[index] else -1.0
            return [7] * sampling.max_tokens, [value] * sampling.max_tokens
        assert arguments == (UpdateMode.KEEP,)
        return None


def make(fleet: FakeFleet, version: int = 0) -> WeightSync:
    return WeightSync(cast(Any, FakeRanks()), cast(Any, fleet), "float32", 10.0, 10.0, UpdateMode.KEEP, version)


WHOLE = ["begin_update", "load_bucket", "load_bucket", "finish_update"]


@pytest.mark.parametrize("dies_in", [None, "begin_update", "load_bucket", "finish_update"])
def test_every_engine_gets_the_version_whatever_dies_on_the_way(dies_in):
    fleet = FakeFleet(dies_in)
    sync = make(fleet, version=6)
    sync.publish()
    sync.bring()  # to the one that began in the other's place
    assert sync.version == 7
    assert fleet.versions == {0: 7, 1: 7}
    assert fleet.bare == []
    for engine in fleet.started:
        assert [method for called, method in fleet.calls if called == engine] == WHOLE
    num_calls = len(fleet.calls)
    sync.bring()
    assert len(fleet.calls) == num_calls  # nobody lacks anything


def test_changed_bytes_are_an_error_that_names_the_engine():
    with pytest.raises(WeightSyncError, match="bucket 0 of version 1 arrived changed in engine 1: checksum 101 inst"):
        make(FakeFleet(corrupts=1)).publish()


def test_the_canary_sees_engines_that_follow_and_fits_a_small_context():
    fleet = FakeFleet()
    report = make(fleet).check_canary(list(range(50)), max_context=20)
    assert (report.perturbed, report.power, report.true) == (0.0, 2.0, 0.0)
    assert fleet.max_seen == 20
    assert fleet.seen == [-2, -2, 0, 0]  # the perturbed weights have a version that is none of the run's


def test_the_canary_catches_an_engine_that_keeps_its_weights():
    fleet = FakeFleet()
    answer = fleet._answer
    fleet._answer = lambda index, method, *args: (  # type: ignore[method-assign]
        args[0].checksum if (index, method) == (1, "load_bucket") else answer(index, method, *args)
    )
    with pytest.raises(WeightSyncError, match="did not follow"):
        make(fleet).check_canary(list(range(50)), max_context=128)
