"""Seconds and bytes that a step's trajectories cost on disk: the store, against plain JSON lines and against Parquet.

256 trajectories of 4096 tokens, with as much text as they stand for; each way writes all there is to know, waits for
the disk, and reads it back as trajectories, alternating. Plain lines have logprobs in digits, as the first schema had;
Parquet has columns of arrays under zstd, and the rest as JSON text in a column of its own.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

from turngym.agents.base import Completion, Sampling, StopReason
from turngym.agents.sequence import Sequence, SequenceBuilder
from turngym.envs.task import Task
from turngym.executors.episodes.trajectory import EndReason, Trajectory, TurnEnd
from turngym.executors.store.format import from_record, to_record
from turngym.executors.store.store import TrajectoryStore

GOAL = 2.0  # times as quick to write as plain lines, in half the space
TURNS = 8
VOCABULARY = 49_152
ARRAYS = {"token_ids": "int32", "is_action": "bool_", "logprobs": "float32", "versions": "int32", "turn": "int32"}


@dataclass
class Way:
    """One way to keep trajectories, and what was measured of it."""

    write: Callable[[Path, list[Trajectory]], Path]
    read: Callable[[Path], list[Trajectory]]
    write_s: list[float] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)
    mib: float = 0.0


def make_trajectory(rng: np.random.Generator, attempt: int, tokens: int) -> Trajectory:
    builder, messages = SequenceBuilder(), []
    shown, sampled = tokens // TURNS // 5, tokens // TURNS - tokens // TURNS // 5
    for turn in range(TURNS):
        builder.add_context(some_ids(rng, shown), turn - 1)
        # Most tokens are nearly certain, some are not.
        logprobs = -rng.exponential(0.5, sampled) * (rng.random(sampled) < 0.5) - np.exp(rng.normal(-8, 3, sampled))
        versions = np.full(sampled, attempt % 3)
        completion = Completion(some_ids(rng, sampled), logprobs.astype(np.float32), versions, StopReason.STOP)
        builder.add_completion(completion, Sampling(sampled), turn)
        messages.append({"role": "user", "content": some_text(rng, shown)})
        messages.append({"role": "assistant", "content": some_text(rng, sampled)})
    return Trajectory(
        task=Task(id=f"bench/{attempt // 8}", prompt="2 + 2 = ?", label="4", seed=attempt),
        attempt=attempt % 8,
        sequences=(builder.build(),),
        messages=tuple(messages),
        rewards_per_turn=rng.random(TURNS),
        turn_ends=(TurnEnd.STOP,) * TURNS,
        end_reason=EndReason.TERMINATED,
        seconds={"generate": 20.5, "env": 0.25, "render": 0.125, "total": 21.0},
    )


def some_ids(rng: np.random.Generator, count: int) -> np.ndarray:
    """As unevenly spread as words are."""
    return np.minimum(rng.pareto(0.8, count) * 60, VOCABULARY - 1).astype(np.int32)


def some_text(rng: np.random.Generator, tokens: int) -> str:
    return " ".join(f"w{word}" for word in some_ids(rng, tokens * 3 // 4).tolist())


def write_store(folder: Path, trajectories: list[Trajectory]) -> Path:
    return TrajectoryStore(folder).write(1, trajectories)


def read_store(path: Path) -> list[Trajectory]:
    return [stored.trajectory for stored in TrajectoryStore(path.parent).read()]


def write_plain(folder: Path, trajectories: list[Trajectory]) -> Path:
    path = folder / "plain.jsonl"
    with path.open("w") as file:
        for trajectory in trajectories:
            record = to_record(1, trajectory)
            for kept, sequence in zip(record["sequences"], trajectory.sequences, strict=True):
                digits = sequence.logprobs[sequence.is_action].astype("U32").tolist()
                kept["logprobs"] = list(map(float, digits))
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return path


def read_plain(path: Path) -> list[Trajectory]:
    with path.open() as file:
        return [from_record({**json.loads(line), "schema": 1}, "line").trajectory for line in file]


def write_parquet(folder: Path, trajectories: list[Trajectory]) -> Path:
    path = folder / "all.parquet"
    texts = []
    for trajectory in trajectories:
        record = to_record(1, Trajectory(**{**vars(trajectory), "sequences": ()}))
        texts.append(json.dumps(record, ensure_ascii=False))
    columns = {"record": pyarrow.array(texts)}
    for name, dtype in ARRAYS.items():
        rows = [getattr(trajectory.sequences[0], name) for trajectory in trajectories]
        columns[name] = pyarrow.array(rows, pyarrow.list_(getattr(pyarrow, dtype)()))
    with path.open("wb") as file:
        pyarrow.parquet.write_table(pyarrow.table(columns), file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    return path


def read_parquet(path: Path) -> list[Trajectory]:
    table = pyarrow.parquet.read_table(path)
    columns = {name: table[name].combine_chunks() for name in ARRAYS}
    trajectories = []
    for row, text in enumerate(table["record"].to_pylist()):
        arrays = {name: column[row].values.to_numpy(zero_copy_only=False) for name, column in columns.items()}
        sequence = Sequence(**arrays, samplings={})
        bare = from_record(json.loads(text), "row").trajectory
        trajectories.append(Trajectory(**{**vars(bare), "sequences": (sequence,)}))
    return trajectories


def measure(rounds: int, count: int, tokens: int) -> dict[str, object]:
    rng = np.random.default_rng(0)
    trajectories = [make_trajectory(rng, attempt, tokens) for attempt in range(count)]
    ways = {
        "store": Way(write_store, read_store),
        "plain": Way(write_plain, read_plain),
        "parquet": Way(write_parquet, read_parquet),
    }
    for index in range(rounds + 1):
        for way in ways.values():
            one_round(way, trajectories, is_counted=index > 0)  # the first round warms up
        if index:
            cells = (f"{way.write_s[-1]:.2f} s {way.read_s[-1]:.2f} s {way.mib:.1f} MiB" for way in ways.values())
            print(("{:>5}" + " {:>24}" * len(ways)).format(index, *cells), flush=True)
    return report(ways, count * tokens)


def one_round(way: Way, trajectories: list[Trajectory], *, is_counted: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        path = way.write(Path(folder), trajectories)
        written = time.perf_counter()
        read = way.read(path)
        ended = time.perf_counter()
        way.mib = path.stat().st_size / 2**20
    for one, other in zip(trajectories, read, strict=True):
        assert one.messages == other.messages
        for name in ARRAYS:
            kept, back = getattr(one.sequences[0], name), getattr(other.sequences[0], name)
            assert np.array_equal(kept, back, equal_nan=name == "logprobs"), name
    if is_counted:
        way.write_s.append(written - began)
        way.read_s.append(ended - written)


def report(ways: dict[str, Way], tokens: int) -> dict[str, object]:
    store, plain = ways["store"], ways["plain"]
    rate = {name: round(tokens / statistics.median(way.write_s)) for name, way in ways.items()}
    ratio = statistics.median(b / a for a, b in zip(store.write_s, plain.write_s, strict=True))
    return {
        "name": "executors/store",
        "value": rate["store"],
        "unit": "tokens/s written",
        "baseline": "plain JSON lines with logprobs in digits",
        "baseline_value": rate["plain"],
        "ratio": round(ratio, 2),
        "goal": GOAL,
        "met": ratio >= GOAL and store.mib <= plain.mib / GOAL,
        "where": f"CPU, {os.cpu_count()} cores, 1 thread",
        "parquet_value": rate["parquet"],
        "mib": {name: round(way.mib, 1) for name, way in ways.items()},
        "write_s": {name: round(statistics.median(way.write_s), 2) for name, way in ways.items()},
        "read_s": {name: round(statistics.median(way.read_s), 2) for name, way in ways.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round, to see that it runs")
    quick = parser.parse_args().quick
    print(("{:>5}" + " {:>24}" * 3).format("round", "store", "plain", "parquet"))
    print(json.dumps(measure(1, 8, 256) if quick else measure(5, 256, 4096)))


if __name__ == "__main__":
    main()
