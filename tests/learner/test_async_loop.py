"""The real loop over real rollouts: batches ahead of the learner, and what engines, signals and restarts do to them."""

import itertools
import json
import signal
import threading

import pytest

from turngym.errors import CheckpointError, EngineDeadError, WorkerError
from turngym.executors.episodes.trajectory import FailureKind
from turngym.executors.pools import breaker
from turngym.executors.rollouts import rollouts as rollouts_module
from turngym.executors.rollouts.pacing import Pace
from turngym.executors.rollouts.schedule import read_schedule
from turngym.learner.options import AlgoOptions

from .toy_run import KL, Coin, Running, Toy, surviving, trained, wanted

FILES = ("driver.json", "weights.txt", "optimizer.txt", "finished.jsonl.gz", "env_states.pkl")


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(rollouts_module, "POLL_S", 0.005)
    monkeypatch.setattr(breaker, "FIRST_PAUSE_S", 0.01)


def count(running: Running, name: str) -> int:
    return running.rollouts.counts.get(name, 0)


def rows(running: Running) -> list[dict]:
    return running.standing.rows


@pytest.mark.slow
@pytest.mark.parametrize(
    "pace", [Pace(4), Pace(4, batches_ahead=1, max_staleness=1), Pace(4, batches_ahead=3, max_staleness=4)]
)
def test_every_task_is_learned_from_once_and_none_is_too_old(tmp_path, pace):
    running = Running(Toy(tmp_path, pace=pace))
    running.go()
    assert sorted(running.books.trained) == wanted(running.toy)
    assert surviving(tmp_path) == running.books.trained
    lags = [row["staleness/max"] for row in rows(running)]
    assert max(lags) <= pace.max_staleness
    assert (max(lags) > 0) == (pace.batches_ahead > 0)
    assert [count(running, name) for name in ("groups_expired", "groups_expired_running", "attempts_stale")] == [0] * 3
    assert count(running, "groups_dropped") == 2  # the bad task, in both passes


class Hopeless(Coin):
    """At one task nothing is ever worth anything, so that a filter has work whatever falls."""

    def reset(self, *, seed=None, options=None):
        self._name = options["task"].id
        return super().reset(seed=seed, options=options)

    def step(self, action):
        observation, reward, *end = super().step(action)
        return observation, 0.0 if self._name == "task 7" else reward, *end


@pytest.mark.slow
@pytest.mark.parametrize("pace", [Pace(4), Pace(4, batches_ahead=1, max_staleness=1)])
def test_a_filter_refills_until_the_batch_is_full(tmp_path, pace):
    """Groups all of whose attempts did the same are left out; others come for them, and nothing begun is wasted."""
    algo = AlgoOptions(kl=KL, dynamic_filtering_enable=True)
    running = Running(Toy(tmp_path, pace=pace, num_passes=3, env=Hopeless, settings={"algo": algo}))
    running.go()
    kept = [row["groups/kept"] for row in rows(running)]
    assert kept[:-1] == [4.0] * (len(kept) - 1)
    assert sum(row["groups/without_spread"] for row in rows(running)) > 0
    assert count(running, "groups_expired") == 0
    # Those that were left out are in the books too; the last ones of all may be all that the last step had.
    assert len(set(running.books.trained)) == len(running.books.trained)
    assert sorted({*running.books.trained, *running.books.pending}) == wanted(running.toy)


@pytest.mark.slow
def test_a_batch_goes_without_its_stragglers(tmp_path):
    """One engine hangs for a while: its groups are given up, drawn again, and learned from in the end."""
    running = Running(Toy(tmp_path, pace=Pace(4), plan={"straggler_s": 0.3}))
    hung = running.fleet.seats[0]
    hung.is_hung = True
    running.ranks.on_train = lambda count: setattr(hung, "is_hung", False)
    running.go()
    assert sorted(running.books.trained) == wanted(running.toy)
    assert running.rollouts.counts["batches_hurried"] >= 1
    assert running.rollouts.counts["groups_expired_running"] >= 1


@pytest.mark.slow
def test_an_engine_that_dies_costs_nothing(tmp_path):
    running = Running(Toy(tmp_path, latency_s=0.002))
    running.ranks.on_train = lambda count: running.fleet.kill(0) if count == 2 else None
    running.go()
    assert sorted(running.books.trained) == wanted(running.toy)


@pytest.mark.slow
def test_without_any_engine_the_run_stops_its_state_is_saved_and_it_goes_on_from_there(tmp_path):
    first = Running(Toy(tmp_path, num_engines=2, settings={"save_every": -1}))

    def kill_all(count: int) -> None:
        if count == 3:
            first.fleet.wait_for(lambda: first.rollouts.num_ready == 4, "the batch ahead")
            for index in range(2):
                first.fleet.kill(index)
            first.fleet.wait_for(lambda: first.rollouts._failure is not None, "the news of it")

    first.ranks.on_train = kill_all
    with pytest.raises(EngineDeadError, match="no engine lives any more"):
        first.go()
    assert first.standing.state.step == 3
    assert first.lines[-1] == "the state after step 3 is saved; --ckpt.load_enable goes on from there"
    assert len(surviving(tmp_path)) == 12
    second = Running(Toy(tmp_path))
    assert second.rollouts.num_ready == 4  # what had been finished ahead
    second.go()
    assert sorted(second.books.trained) == wanted(second.toy)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["engines", "bug"])
def test_a_long_step_is_not_finished_for_rollouts_that_have_ended(tmp_path, mode):
    """The learner is in the middle of its fourth step, and would be for ever; the state after the third is saved."""
    first = Running(Toy(tmp_path, num_engines=2, settings={"save_every": -1}))

    def lose_all() -> None:
        if first.ranks.num_trained == 3:
            assert not first.ranks.stop.is_set()
            if mode == "bug":
                first.fleet.poll = lambda timeout_s: 1 / 0
            for index in range(2):
                first.fleet.kill(index)
            assert first.ranks.stop.wait(30), "nobody told the ranks, which would go on to the end of the step"

    first.ranks.on_step = lose_all
    with pytest.raises(EngineDeadError if mode == "engines" else WorkerError, match=r"no engine lives|ZeroDivision"):
        first.go()
    assert (first.standing.state.step, first.ranks.num_trained) == (3, 3)
    assert not first.standing.state.is_interrupted
    assert first.lines[-1] == "the state after step 3 is saved; --ckpt.load_enable goes on from there"
    second = Running(Toy(tmp_path))
    second.go()
    assert sorted(second.books.trained) == wanted(second.toy)


def test_before_the_first_step_there_is_nothing_to_save(tmp_path):
    first = Running(Toy(tmp_path))
    for index in range(2):
        first.fleet.kill(index)
    with pytest.raises(EngineDeadError):
        first.go()
    assert first.checkpoints.newest() == (None, [])


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["rollout", "train"])
def test_an_interrupted_run_leaves_its_last_whole_step_and_what_was_finished_by_then(tmp_path, moment):
    first = Running(Toy(tmp_path, settings={"save_every": -1}))

    def stop(count: int) -> None:
        if count == 3:
            first.fleet.wait_for(lambda: first.rollouts.num_ready == 4, "the batch ahead")
            for seat in first.fleet.seats:
                seat.is_hung = moment == "rollout"
            threading.Timer(0.2, first.interrupt.request).start() if moment == "rollout" else first.interrupt.request()

    first.ranks.on_train = stop
    state = first.go().state
    assert state.is_interrupted
    assert len(surviving(tmp_path)) == 4 * state.step
    if moment == "train":
        assert (state.step, len(state.rollouts.finished)) == (3, 4)
    second = Running(Toy(tmp_path))
    assert [one.draw.serial for one in second.standing.state.rollouts.finished] == [
        one.draw.serial for one in state.rollouts.finished
    ]
    second.go()
    assert sorted(second.books.trained) == wanted(second.toy)
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.slow
def test_counts_go_on_with_the_run(tmp_path):
    first = Running(Toy(tmp_path))
    first.ranks.on_train = lambda count: first.interrupt.request() if count == 6 else None
    first.go()
    before = first.standing.state.rollouts.counts
    second = Running(Toy(tmp_path))
    assert second.rollouts.counts == before
    second.go()
    assert second.rollouts.counts["groups_dropped"] == 2  # in both parts together


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut off", "removed"])
def test_a_checkpoint_with_a_damaged_file_is_passed_over_aloud_and_no_task_is_lost(tmp_path, name, damage):
    first = Running(Toy(tmp_path, num_tasks=12, num_passes=1, settings={"save_every": 1}))
    first.ranks.on_train = lambda count: first.interrupt.request() if count == 2 else None
    first.go()
    path = tmp_path / "checkpoints" / "step_000002" / name
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    second = Running(Toy(tmp_path, num_tasks=12, num_passes=1))
    assert second.lines[0].startswith("checkpoint step_000002 ")
    assert "is not used" in second.lines[0]
    assert second.lines[1] == "going on after step 1"
    second.go()
    assert sorted(second.books.trained) == wanted(second.toy)


def test_a_run_whose_only_checkpoint_is_damaged_does_not_begin_anew_by_itself(tmp_path):
    first = Running(Toy(tmp_path))
    first.ranks.on_train = lambda count: first.interrupt.request()
    first.go()
    (tmp_path / "checkpoints" / "step_000001" / "weights.txt").unlink()
    with pytest.raises(CheckpointError, match=r"weights\.txt is missing"):
        Running(Toy(tmp_path))


@pytest.mark.slow
def test_with_another_data_set_the_tasks_begin_anew_aloud(tmp_path):
    """R48: trained on a long set, going on with a short one: no position, no finished groups of the old one."""
    first = Running(Toy(tmp_path, num_tasks=1000, num_passes=1))
    first.ranks.on_train = lambda count: first.interrupt.request() if count == 5 else None
    first.go()
    second = Running(Toy(tmp_path, num_tasks=20, num_passes=1, fingerprint="another"))
    assert "another set of tasks" in second.lines[0]
    assert (second.rollouts.num_ready, second.frontier.num_left) == (0, 20)
    old = list(second.books.trained)
    second.go()
    assert sorted(second.books.trained[len(old) :]) == wanted(second.toy)


@pytest.mark.slow
def test_fewer_passes_than_were_begun_end_the_run(tmp_path):
    first = Running(Toy(tmp_path, num_tasks=8, num_passes=3, pace=Pace(4)))
    first.ranks.on_train = lambda count: first.interrupt.request() if count == 5 else None
    first.go()
    second = Running(Toy(tmp_path, num_tasks=8, num_passes=1, pace=Pace(4)))
    second.go()
    assert len(rows(second)) == 5


@pytest.mark.slow
def test_an_epoch_that_is_no_multiple_of_the_batch_loses_nothing_on_resume(tmp_path):
    """R46: 11 tasks, 4 a step: step 3 holds the end of one pass and the beginning of the next."""
    toy = Toy(tmp_path, num_tasks=11, num_passes=3, settings={"save_every": 1})
    for stops_after in (3, 2, None):
        running = Running(toy)
        running.ranks.on_train = lambda count, last=stops_after, running=running: (
            running.interrupt.request() if count == last else None
        )
        running.go()
    assert sorted(running.books.trained) == wanted(toy)


def test_a_signal_is_heard_while_rollouts_hang(tmp_path):
    running = Running(Toy(tmp_path))
    for seat in running.fleet.seats:
        seat.is_hung = True
    with running.interrupt:
        threading.Timer(0.1, lambda: signal.raise_signal(signal.SIGTERM)).start()
        assert running.go().state.is_interrupted


@pytest.mark.slow
def test_held_out_tasks_run_beside_the_batches_ahead(tmp_path):
    running = Running(Toy(tmp_path, settings={"eval_every": 3, "eval_at_start": True}))
    running.go()
    assert sorted(running.standing.scores.by_step)[:3] == [0, 3, 6]
    assert sorted(running.books.trained) == wanted(running.toy)


@pytest.mark.slow
def test_failed_attempts_are_no_rewards(tmp_path):
    running = Running(Toy(tmp_path))
    running.go()
    stored = [stored.trajectory for stored in running.run_folder.train_store.read()]
    failed = [t for t in stored if not t.is_valid]
    assert {t.failure.kind for t in failed} == {FailureKind.ENV}
    assert len(stored) == 4 * 44
    assert sum(row["attempts/failed"] for row in rows(running)) == len(failed)


@pytest.mark.slow
def test_checkpoints_hold_the_line_that_leads_to_them(tmp_path):
    running = Running(Toy(tmp_path))
    running.go()
    lines = [trained(path) for path in sorted((tmp_path / "checkpoints").glob("step_*"))]
    assert len(lines) == 3
    for shorter, longer in itertools.pairwise(lines):
        assert longer[: len(shorter)] == shorter


@pytest.mark.slow
def test_the_schedule_says_what_each_step_took_and_survives_a_resume(tmp_path):
    first = Running(Toy(tmp_path))
    first.ranks.on_train = lambda count: first.interrupt.request() if count == 3 else None
    assert first.go().state.is_interrupted
    second = Running(Toy(tmp_path))
    second.go()
    schedule = read_schedule(tmp_path / "schedule.jsonl")
    assert [step.step for step in schedule.steps] == list(range(1, len(rows(second)) + 1))
    taken = [group.serial for step in schedule.steps for take in step.takes for group in take]
    assert taken == second.books.trained
    assert all(len(turns) == 2 for _, group in schedule.of_serial.values() for turns in group.turns if not group.failed)
