"""The driver is killed at random moments, and along the surviving line of checkpoints nothing is lost or done twice."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import pytest

from turngym.learner.run.checkpoint import CheckpointFolder

from ..toy_run import Toy, surviving, wanted

ROOT = Path(__file__).resolve().parents[3]


class Runs:
    """Begins runs of `toy_run.py`, each in a process of its own."""

    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.learner.toy_run"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._read("ready")

    def begin(self, folder: Path, seed: int, save_every: int) -> int:
        """Let a run begin, or go on from its newest checkpoint; return its process id."""
        words = {"folder": str(folder), "seed": seed, "save_every": save_every}
        cast(IO[str], self._parent.stdin).write(json.dumps(words) + "\n")
        return self._read("began")

    def end(self) -> int:
        """Wait for it to end and return its exit code."""
        return self._read("ended")

    def close(self) -> None:
        cast(IO[str], self._parent.stdin).close()
        self._parent.wait(60)

    def _read(self, what: str) -> int:
        """Read one line, which must be of this: a number of another kind must never be taken for a process."""
        said, _, number = cast(IO[str], self._parent.stdout).readline().strip().partition(" ")
        assert said == what, f"the parent of the runs said {said!r}, and {what!r} was to come"
        return int(number or 0)


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    runs = Runs()
    yield runs
    runs.close()


def kill_until(runs: Runs, root: Path, rng: random.Random, num_kills: int, number: signal.Signals) -> int:
    """Kill runs and have them go on until so many kills hit one that lived; return how many runs came to their end.

    Many of them must hit a run that has a checkpoint to go on from, or the test would be of nothing.
    """
    kills = ended = starts = resumable = 0
    longest_s = 0.9
    while kills < num_kills or ended == 0:
        folder, save_every = root / f"run {ended}", 1 + ended % 2
        starts += 1
        assert starts < 20 * num_kills, f"only {kills} kills hit a run that lived"
        pid = runs.begin(folder, seed=starts, save_every=save_every)
        if kills < num_kills:
            # Anywhere: in rollouts, in an update, while a checkpoint is written; or when it has just ended by itself.
            time.sleep(rng.uniform(0.05, longest_s))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        code = runs.end()
        if code == 0:
            check_end(folder)
            ended += 1
        else:
            assert code == -number or code == 130
            has_line = check_line(folder)
            longest_s *= 1.0 if has_line else 1.3  # a busy machine is slow to begin
            resumable += has_line
            kills += 1
    assert resumable > num_kills / 4, f"only {resumable} of {kills} kills left a checkpoint behind"
    return ended


def check_line(folder: Path) -> bool:
    """What a run will go on from is a line without a task that was trained twice; return whether there is one."""
    if CheckpointFolder(folder / "checkpoints", 3).newest()[0] is None:
        return False
    line = surviving(folder)
    assert len(set(line)) == len(line)
    assert set(line) <= set(wanted(Toy(folder)))
    return True


def check_end(folder: Path) -> None:
    """Every task of both passes was trained exactly once, and the books say so."""
    assert sorted(surviving(folder)) == wanted(Toy(folder))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert max(row["staleness/max"] for row in rows) <= 2


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.timeout(280)
def test_a_driver_that_is_killed_a_few_times_loses_nothing(runs, tmp_path):
    assert kill_until(runs, tmp_path, random.Random(1), 4, signal.SIGKILL) >= 1


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2))
def test_a_driver_that_is_killed_twenty_times_loses_nothing(runs, tmp_path, seed):
    assert kill_until(runs, tmp_path, random.Random(100 + seed), 20, signal.SIGKILL) >= 1


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_driver_that_is_asked_to_stop_a_few_times_loses_nothing(runs, tmp_path):
    assert kill_until(runs, tmp_path, random.Random(2), 6, signal.SIGTERM) >= 1
