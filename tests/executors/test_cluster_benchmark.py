"""The simulated cluster: engines by hand-worked numbers, runs by what must hold of any, and the last line."""

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from turngym.executors.engines.base import UpdateMode

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "executors"
FIELDS = {"name", "value", "unit", "baseline", "baseline_value", "ratio", "goal", "met", "where"}
DRAIN, RECOMPUTE, KEEP = UpdateMode.DRAIN, UpdateMode.RECOMPUTE, UpdateMode.KEEP


@pytest.fixture
def cluster(monkeypatch):
    """The benchmark's modules."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("cluster_engine", "cluster_work", "cluster_run")
    yield tuple(importlib.import_module(name) for name in names)
    for name in names:
        del sys.modules[name]


@pytest.fixture
def engine(cluster):
    """Make an engine with steps of 1 s, and 1 s more for each request; prompts take no time."""

    def make(**numbers):
        numbers = {"weights_s": 1.0, "sequence_s": 1.0, "context_s": 0.0, "prefill_per_s": math.inf} | numbers
        return cluster[0].Engine(cluster[0].EngineModel(**numbers))

    return make


@pytest.fixture
def request_of(cluster):
    """Make a request: 10 tokens of context, and so many to sample."""

    def make(num_tokens, age=0, context=10.0):
        return cluster[0].Request(cluster[1].Episode(0, num_tokens, [0.0]), context, context, num_tokens, age, None)

    return make


def test_requests_share_steps(engine, request_of):
    """One alone takes 2 s a token, two take 3 s: 4 tokens of the first are out when the second comes at 8 s."""
    engine, first, second = engine(), request_of(6), request_of(4)
    engine.ask(first, 0.0)
    assert engine.next_at() == 12.0
    engine.ask(second, 8.0)
    assert engine.next_at() == pytest.approx(8 + 2 * 3)
    assert engine.run_to(14.0) == [first]
    assert engine.next_at() == pytest.approx(14 + 2 * 2)
    assert engine.run_to(18.0) == [second]
    assert (engine.num_tokens, engine.next_at(), engine.is_idle) == (pytest.approx(10), math.inf, True)


def test_memory_puts_out_the_youngest_and_loses_no_token(engine, request_of):
    """20 of 24 tokens are held; after 2 steps of 3 s memory is full, and the younger goes until the older is done."""
    engine, old, young = engine(capacity=24), request_of(6, age=1, context=9.0), request_of(6, age=2, context=9.0)
    engine.ask(young, 0.0)
    engine.ask(old, 0.0)
    assert engine.next_at() == pytest.approx(9.0)
    assert engine.run_to(9.0) == []
    assert engine.num_preempted == 1
    assert engine.next_at() == pytest.approx(9 + 3 * 2)
    assert engine.run_to(15.0) == [old]
    assert (young.context, young.num_left) == (pytest.approx(12), pytest.approx(3))
    assert engine.run_to(engine.next_at()) == [young]
    assert engine.num_tokens == pytest.approx(12)


@pytest.mark.parametrize(("mode", "ends"), [(KEEP, 17 + 5), (RECOMPUTE, 17 + 5 + 14 / 2)])
def test_an_update_stops_what_runs(mode, ends, engine, request_of):
    """At 13 s, 14 tokens are held; the update takes 5 s, and computing them anew 7 s."""
    engine, request = engine(prefill_per_s=2.0), request_of(6)
    engine.ask(request, 0.0)  # its prompt of 10 takes 5 s, its tokens 12
    engine.run_to(13.0)
    engine.pause(mode, 13.0)
    assert engine.next_at() == math.inf
    engine.resume(1, 18.0)
    assert engine.next_at() == pytest.approx(ends)
    assert engine.run_to(ends) == [request]
    assert (request.episode.oldest, request.episode.newest) == (0, 1)


def test_draining_finishes_what_runs_and_holds_what_comes(engine, request_of):
    engine, first, second = engine(), request_of(6), request_of(6)
    engine.ask(first, 0.0)
    engine.pause(DRAIN, 4.0)
    engine.ask(second, 5.0)
    assert not engine.is_idle
    assert engine.run_to(12.0) == [first]
    assert engine.is_idle
    engine.resume(1, 20.0)
    assert engine.run_to(engine.next_at()) == [second]
    assert (first.episode.newest, second.episode.oldest) == (0, 1)


@pytest.mark.parametrize("is_oldest_first", [True, False])
def test_who_goes_first(is_oldest_first, engine, request_of):
    engine = engine(max_num_seqs=1, is_oldest_first=is_oldest_first)
    runs, late, early = request_of(1, age=5), request_of(1, age=9), request_of(1, age=3)
    for request in (runs, late, early):
        engine.ask(request, 0.0)
    assert engine.run_to(2.0) == [runs]
    assert engine.run_to(4.0) == [early if is_oldest_first else late]


def test_a_cancelled_request_frees_its_place(engine, request_of):
    engine = engine(max_num_seqs=1)
    runs, waits, gone = request_of(5), request_of(5), request_of(5)
    for request in (runs, waits, gone):
        engine.ask(request, 0.0)
    engine.cancel(gone, 2.0)
    engine.cancel(runs, 2.0)
    assert engine.next_at() == 12.0
    assert engine.run_to(12.0) == [waits]
    assert engine.is_idle
    assert engine.num_tokens == pytest.approx(6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ahead", "bound", "update"), [(0, 0, DRAIN), (1, 1, KEEP), (2, 3, DRAIN), (2, 3, RECOMPUTE), (3, 5, KEEP)]
)
def test_a_run_keeps_its_bound_and_expires_nothing(ahead, bound, update, cluster):
    cluster_run = cluster[2]
    small = cluster_run.Cluster(num_engines=2, batch_groups=8, attempts=4, learner_s_per_token=5e-4)
    record = cluster_run.Run(small, cluster_run.Mode(ahead, bound, update)).play(8)
    assert record.expired == 0
    assert [len(lags) for lags in record.lags] == [32] * 8
    assert max(lags.max() for lags in record.lags) <= bound
    assert all(lags.min() >= 0 for lags in record.lags)
    assert record.samples[-1][1] >= 0.95 * sum(record.batch_tokens)  # the last sample is a while ago
    steps_s = np.diff(record.step_ends)
    assert all(steps_s >= np.array(record.learn_s[1:]) + small.update_s - 1e-6)


@pytest.mark.slow
@pytest.mark.heavy
def test_the_last_line_holds_the_numbers(tmp_path):
    command = [sys.executable, str(FOLDER / "cluster.py"), "--quick", "--picture", str(tmp_path / "async.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result.keys() >= FIELDS
    assert result["name"] == "executors/cluster"
    assert result["ratio"] > result["synchronous_ratio"] > 0
    assert (tmp_path / "async.png").stat().st_size > 10_000
