"""Publishing weights: every engine gets every bucket under one version, also one that replaces a dead one."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from turngym.errors import WeightSyncError
from turngym.executors.weights import Bucket
from turngym.learner import weight_sync
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
        self.calls: list[tuple[int, str]] = []
        self.versions = {0: 0, 1: 0}
        self.has_perturbed = {0: False, 1: False}
        self.on_restart: Callable[[int], None] | None = None
        self.max_seen = 0
        self._dies_in, self._corrupts = dies_in, corrupts
        self._dead: set[int] = set()
        self.actors = [SimpleNamespace(sample=SimpleNamespace(remote=self._sampler(index))) for index in (0, 1)]

    def call(self, indices: Sequence[int], method: str, *arguments: Any, timeout_s: float, what: str) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        for index in indices:
            if index in self._dead:
                continue
            if index == 1 and method == self._dies_in:
                self._dies_in = None
                self._dead.add(index)
                continue
            self.calls.append((index, method))
            answers[index] = self._answer(index, method, *arguments)
        return answers

    def replace_dead(self) -> None:
        for index in sorted(self._dead):
            self._dead.remove(index)
            self.calls = [call for call in self.calls if call[0] != index]
            assert self.on_restart is not None
            self.on_restart(index)

    def _answer(self, index: int, method: str, *arguments: Any) -> Any:
        if method == "load_bucket":
            self.has_perturbed[index] = arguments[0].handle
            return arguments[0].checksum + (1 if index == self._corrupts else 0)
        if method == "finish_update":
            self.versions[index] = arguments[0]
            return arguments[0]
        return None

    def _sampler(self, index: int) -> Any:
        def sample(prompt_ids: list[int], sampling: Any) -> Any:
            self.max_seen = max(self.max_seen, len(prompt_ids) + sampling.max_tokens)
            value = -3.0 if self.has_perturbed[index] else -1.0
            return [7] * sampling.max_tokens, [value] * sampling.max_tokens

        return sample


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setattr(weight_sync, "call_all", lambda calls, timeout_s, what: calls)  # the fakes answer at once

    def build(fleet: FakeFleet, version: int = 0) -> WeightSync:
        return WeightSync(cast(Any, FakeRanks()), cast(Any, fleet), "float32", 10.0, version)

    return build


WHOLE = ["begin_update", "load_bucket", "load_bucket", "finish_update"]


@pytest.mark.parametrize("dies_in", [None, "begin_update", "load_bucket", "finish_update"])
def test_every_engine_gets_the_version_whatever_dies_on_the_way(make, dies_in):
    fleet = FakeFleet(dies_in)
    sync = make(fleet, version=6)
    sync.publish()
    assert sync.version == 7
    assert fleet.versions == {0: 7, 1: 7}
    for index in (0, 1):
        assert [method for engine, method in fleet.calls if engine == index] == WHOLE


def test_changed_bytes_are_an_error_that_names_the_engine(make):
    with pytest.raises(WeightSyncError, match="bucket 0 of version 1 arrived changed in engine 1: checksum 101 inst"):
        make(FakeFleet(corrupts=1)).publish()


def test_the_canary_sees_engines_that_follow_and_fits_a_small_context(make):
    fleet = FakeFleet()
    report = make(fleet).check_canary(list(range(50)), max_context=20)
    assert (report.perturbed, report.power, report.true) == (0.0, 2.0, 0.0)
    assert fleet.max_seen == 20


def test_the_canary_catches_an_engine_that_keeps_its_weights(make):
    fleet = FakeFleet()
    answer = fleet._answer
    fleet._answer = lambda index, method, *args: (  # type: ignore[method-assign]
        args[0].checksum if (index, method) == (1, "load_bucket") else answer(index, method, *args)
    )
    with pytest.raises(WeightSyncError, match="did not follow"):
        make(fleet).check_canary(list(range(50)), max_context=128)
