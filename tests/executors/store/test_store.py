import base64
import gzip
import json
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from turngym.agents.base import Completion, Sampling, StopReason
from turngym.agents.images import PlacedImage
from turngym.agents.sequence import SequenceBuilder
from turngym.agents.shape import Grammar, Shape
from turngym.envs.images import as_image
from turngym.envs.task import Task
from turngym.errors import StoreError, TrajectoryError
from turngym.executors.episodes.trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd
from turngym.executors.store import parts
from turngym.executors.store.store import TrajectoryStore


def sequence(rng, turns=3, parent=None):
    builder = SequenceBuilder(parent=parent, fork_reason="thinking stripped" if parent else None)
    builder.add_context(rng.integers(0, 50_000, 5), -1)
    for turn in range(turns):
        count = int(rng.integers(0, 6))
        logprobs = -np.exp(rng.normal(-3, 4, count)).astype(np.float32)
        ids = rng.integers(0, 50_000, count, dtype=np.int32)
        versions = rng.integers(0, 3, count, dtype=np.int32)
        shape = Shape(Grammar.json_schema({"a": "é"}), logit_bias=((3, 1.5),), bad_words=("no",)) if turn == 1 else None
        stops = {"stop": ("###",), "stop_token_ids": (7,), "shape": shape, "num_top_logprobs": 2 * (turn == 1)}
        sampling = Sampling(count + 1, temperature=0.7, seed=2**62 + turn, **stops)
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
    for field in ("task", "attempt", "messages", "turn_ends", "end_reason", "failure", "score", "extra_logs", "engine"):
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
    written = [trajectory(seed, engine=seed % 3 or None) for seed in range(20)]
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


def test_each_image_is_kept_once_and_comes_back_everywhere(tmp_path):
    red, blue = (as_image(np.full((2, 3, 3), value, np.uint8)) for value in (9, 200))
    builder = SequenceBuilder()
    builder.add_context([1, 2, 2, 3], -1, [PlacedImage(red, 1, 3, (2,))])
    builder.add_completion(Completion(np.array([4], np.int32), [-1.0], np.array([0]), StopReason.STOP), Sampling(1), 0)
    builder.add_context([2, 5, 2, 2], 0, [PlacedImage(blue, 0, 1, (2,)), PlacedImage(red, 2, 4, (2,))])
    seen = {"role": "user", "content": [{"type": "image", "image": red}, {"type": "text", "text": "?"}]}
    answered = {"role": "user", "content": [{"type": "image", "image": blue}, {"type": "image", "image": red}]}
    written = trajectory(
        task=Task(id="t", prompt=[seen], label=blue),
        sequences=(builder.build(),),
        messages=(seen, {"role": "assistant", "content": "4"}, answered),
    )
    store = TrajectoryStore(tmp_path)
    store.write(1, [written])
    (stored,) = store.read()
    assert stored.inexact == ()
    assert stored.trajectory.messages == written.messages
    assert stored.trajectory.task == written.task
    (sequence,) = stored.trajectory.sequences
    assert sequence.images == (
        PlacedImage(red, 1, 3, (2,)),
        PlacedImage(blue, 5, 6, (2,)),
        PlacedImage(red, 7, 9, (2,)),
    )
    assert sequence.images[0].image.data == red.data
    (line,) = lines_of(store.parts()[0])
    assert json.loads(line)["images"].keys() == {red.digest, blue.digest}


def lines_of(path):
    return gzip.decompress(path.read_bytes()).split(b"\n")[:-1]


def test_a_line_can_be_read_by_eye(tmp_path):
    path = TrajectoryStore(tmp_path, env="env:Guess").write(1, [trajectory()])
    shown = subprocess.run(["zcat", path], capture_output=True, check=True, timeout=60).stdout
    (line,) = shown.split(b"\n")[:-1]
    record = json.loads(line)
    assert list(record)[:6] == ["schema", "step", "task", "attempt", "reward", "score"]
    assert list(record)[-1] == "sequences"
    assert "naïve 日本".encode() in line
    assert record["end_reason"] == "max_tokens"
    assert record["env"] == "env:Guess"
    first = trajectory().sequences[0]
    assert record["sequences"][0]["turn"][0] == [-1, 5]
    assert record["sequences"][0]["token_ids"] == first.token_ids.tolist()
    logprobs = base64.b64decode(record["sequences"][0]["logprobs"])
    assert np.frombuffer(logprobs, "<f4").tolist() == first.logprobs[first.is_action].tolist()


def test_where_it_comes_from_is_kept(tmp_path):
    inexact = trajectory(task=Task(id="t", label=(1, 2), data={3: "x"}))
    TrajectoryStore(tmp_path, env="env:Guess").write(7, [trajectory(), inexact])
    read = list(TrajectoryStore(tmp_path).read())
    assert [(stored.step, stored.env, stored.inexact) for stored in read] == [
        (7, "env:Guess", ()),
        (7, "env:Guess", ("label", "data")),
    ]
    assert read[1].trajectory.task == Task(id="t", label=[1, 2], data={"3": "x"})


SCHEMA_1 = (
    b'{"schema": 1, "step": 1, "task": "sum/7", "attempt": 5, "reward": 0.5, "score": null, "end_reason": "max_turns", '
    b'"failure": null, "prompt": "7 + 2 =", "label": "9", "messages": [{"role": "user", "content": "7 + 2 ="}], '
    b'"rewards_per_turn": [0.5], "turn_ends": ["stop"], "extra_logs": {}, "seconds": {"total": 1.25899}, '
    b'"earlier_failures": [], "seed": 7, "data": {}, "sequences": [{"token_ids": [1, 9690, 30, 2], '
    b'"actions": [[2, 4]], "turn": [[-1, 2], [0, 2]], "versions": [[2, 2]], "logprobs": [-9.5041065, -0.07368497], '
    b'"samplings": {"0": '
    b'{"max_tokens": 24, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "stop": [], '
    b'"stop_token_ids": [2], "seed": null}}, "parent": null, "fork_reason": null}]}\n'
)


def test_plain_files_of_the_first_schema_are_read(tmp_path):
    (tmp_path / "step_000001.jsonl").write_bytes(SCHEMA_1)
    store = TrajectoryStore(tmp_path)
    store.write(1, [trajectory(6)])
    store.write(2, [trajectory(7)])
    old, *new = store.read()
    assert [stored.trajectory.attempt for stored in new] == [6, 7]
    assert (old.step, old.env, old.inexact, old.trajectory.reward) == (1, None, None, 0.5)
    (sequence,) = old.trajectory.sequences
    assert sequence.logprobs[2:].tolist() == [np.float32(-9.5041065), np.float32(-0.07368497)]
    assert sequence.is_action.tolist() == [False, False, True, True]
    assert sequence.samplings[0].stop_token_ids == (2,)


def test_files_of_the_second_schema_are_read_and_know_no_engine(tmp_path):
    store = TrajectoryStore(tmp_path)
    path = store.write(1, [trajectory(5, engine=1)])
    (line,) = lines_of(path)
    record = json.loads(line)
    assert record.pop("engine") == 1
    path.write_bytes(gzip.compress(json.dumps({**record, "schema": 2}).encode() + b"\n"))
    store.write(1, [trajectory(6, engine=2)])
    assert [(s.trajectory.attempt, s.trajectory.engine) for s in store.read()] == [(5, None), (6, 2)]


def test_steps_are_in_order_whatever_their_digits(tmp_path):
    store = TrajectoryStore(tmp_path)
    for step in (1_000_000, 999_999, 2):
        store.write(step, [trajectory()])
    (tmp_path / "step_000003.jsonl.gz.part").write_bytes(b"x")  # no part of the store
    assert [stored.step for stored in store.read()] == [2, 999_999, 1_000_000]
    store.forget_after(2)
    assert [path.name for path in store.parts()] == ["step_000002.jsonl.gz"]


@pytest.mark.parametrize("broken_by", ["a cut", "zeros", "a lost checksum"])
def test_what_a_crash_cut_off_spoils_nothing_else(tmp_path, caplog, nan_equal, broken_by):
    store = TrajectoryStore(tmp_path)
    store.write(1, [trajectory(0)])
    path = store.write(1, [trajectory(1), trajectory(2)])
    whole = path.read_bytes()
    path.write_bytes(
        {"a cut": whole[:-200], "zeros": whole[:-200] + bytes(200), "a lost checksum": whole[:-4]}[broken_by]
    )
    kept = 3 if broken_by == "a lost checksum" else 2
    with caplog.at_level(logging.WARNING):
        assert [stored.trajectory.attempt for stored in store.read()] == [*range(kept)]
    assert f"{path}:{kept + 1}" in caplog.text
    TrajectoryStore(tmp_path).write(1, [trajectory(5)])  # the next process's does not stick to what is broken
    caplog.clear()
    read = list(store.read())
    assert [stored.trajectory.attempt for stored in read] == [*range(kept), 5]
    assert_same(read[-1].trajectory, trajectory(5), nan_equal)
    assert not caplog.text
    assert len(lines_of(path)) == kept + 1  # to gzip, too, the file is whole again
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_part_that_nobody_else_changed_is_not_read_again(tmp_path, monkeypatch):
    """Else an evaluation that writes task by task takes time that grows with the square of its tasks."""
    read: list[Path] = []
    members = parts.members
    monkeypatch.setattr(parts, "members", lambda path: read.append(path) or members(path))
    store = TrajectoryStore(tmp_path)
    for attempt in range(4):
        path = store.write(7, [trajectory(attempt)])
    assert read == []
    with path.open("ab") as file:
        file.write(b"cut off")
    store.write(7, [trajectory(4)])
    assert read == [path]
    TrajectoryStore(tmp_path).write(7, [trajectory(5)])
    assert read == [path, path]
    assert [stored.trajectory.attempt for stored in store.read(pytest.fail)] == [0, 1, 2, 3, 4, 5]


def test_a_plain_line_cut_off_by_a_crash_is_reported_and_skipped(tmp_path, caplog):
    path = tmp_path / "step_000001.jsonl"
    path.write_bytes(SCHEMA_1 + SCHEMA_1[:-40])
    with caplog.at_level(logging.WARNING):
        assert len(list(TrajectoryStore(tmp_path).read())) == 1
    assert caplog.text.count(f"{path}:2") == caplog.text.count("Left out") == 1
    path.write_bytes(SCHEMA_1 + SCHEMA_1[:-1])  # only the line's end is missing
    caplog.clear()
    assert len(list(TrajectoryStore(tmp_path).read())) == 2
    assert not caplog.text


def noise(seed):
    """A trajectory that hardly compresses: about 7 KiB."""
    return trajectory(seed, sequences=(sequence(np.random.default_rng(seed), turns=150),))


@pytest.mark.slow
def test_a_full_disk_leaves_the_part_as_it_was(small_disk, nan_equal):
    store = TrajectoryStore(small_disk / "store")
    path = store.write(1, [trajectory(0)])
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"20 trajectories of step 1 .*No space left on device; free some space"):
        store.write(1, [noise(seed) for seed in range(20)])
    assert path.read_bytes() == before
    with pytest.raises(StoreError, match="step 2"):
        store.write(2, [noise(seed) for seed in range(20)])
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no empty part stays
    store.write(1, [trajectory(1)])  # what fits goes on being written
    assert [stored.trajectory.attempt for stored in store.read()] == [0, 1]


def test_a_full_disk_leaves_a_broken_part_as_it_was(small_disk):
    store = TrajectoryStore(small_disk / "store")
    path = store.write(1, [trajectory(0), noise(1), noise(2), noise(3)])
    path.write_bytes(path.read_bytes()[:-40])
    before = path.read_bytes()
    (small_disk / "ballast").write_bytes(bytes(40 << 10))  # room for no second copy
    with pytest.raises(StoreError):
        store.write(1, [trajectory(4)])
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.slow
def test_a_quota_leaves_the_part_as_it_was(tmp_path):
    program = (
        "import resource, sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from test_store import StoreError, TrajectoryStore, noise\n"
        "store = TrajectoryStore(sys.argv[1])\n"
        "store.write(1, [noise(0)])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try:\n"
        "    store.write(1, [noise(seed) for seed in range(9)])\n"
        "except StoreError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", program, tmp_path, Path(__file__).parent]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "9 trajectories of step 1" in done.stdout, done.stderr
    assert len(lines_of(tmp_path / "step_000001.jsonl.gz")) == 1


def test_what_json_has_no_form_for_stays_readable(tmp_path):
    label = {"answer": np.int64(4), "image": object, 5: (1.5, float("nan"))}
    odd = trajectory(task=Task(id="half \ud83d pair", prompt="\ud83d", label=label))
    store = TrajectoryStore(tmp_path)
    store.write(1, [odd])
    (read,) = store.read()
    assert read.trajectory.task.id == "half \ud83d pair"
    assert read.trajectory.task.label == {"answer": 4, "image": "<class 'object'>", "5": [1.5, "nan"]}


def test_a_newer_format_is_refused(tmp_path):
    (tmp_path / "step_000001.jsonl").write_bytes(SCHEMA_1.replace(b'"schema": 1', b'"schema": 99'))
    with pytest.raises(TrajectoryError, match="schema 99, this version reads 1 to 4; update turngym"):
        list(TrajectoryStore(tmp_path).read())


@pytest.mark.parametrize(
    ("wanted", "found"),
    [(b'"attempt": 5, ', b""), (b"[[2, 4]]", b"[[2, 3]]"), (b'"max_turns"', b'"max_luck"')],
)
def test_a_line_that_is_no_trajectory_is_refused_by_its_place(tmp_path, wanted, found):
    path = tmp_path / "step_000001.jsonl"
    path.write_bytes(SCHEMA_1 + SCHEMA_1.replace(wanted, found))
    with pytest.raises(TrajectoryError, match=f"{path}:2 is no trajectory of schema 1"):
        list(TrajectoryStore(tmp_path).read())


def test_an_empty_folder_holds_nothing(tmp_path):
    assert list(TrajectoryStore(tmp_path / "absent").read()) == []


def test_what_an_attempt_branched_off_is_kept_and_may_be_missing(tmp_path):
    store = TrajectoryStore(tmp_path)
    path = store.write(1, [trajectory(0), trajectory(1, branch_of=(0, 2))])
    assert [one.trajectory.branch_of for one in store.read()] == [None, (0, 2)]
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    for line in lines:
        del line["branch_of"]  # as it was before there were trees
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    assert [one.trajectory.branch_of for one in store.read()] == [None, None]
