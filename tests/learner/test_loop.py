"""The loop with parts that follow a script: what an interruption, an evaluation or a failure leaves behind."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from turngym.agents.base import Sampling
from turngym.agents.sequence import Sequence as Tokens
from turngym.envs.task import Task
from turngym.errors import EngineDeadError, TrajectoryError
from turngym.executors.episodes.trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd
from turngym.executors.fleet.fleet_engine import Order, Outcome
from turngym.executors.rollouts.buffer import Group
from turngym.executors.rollouts.dispatch import Dispatcher, RolloutPlan, Taken
from turngym.executors.rollouts.pacing import Pace
from turngym.learner.loop import run_loop
from turngym.learner.loop_parts import LoopSettings, LoopState, Parts
from turngym.learner.losses.objective import Objective
from turngym.learner.losses.policy import PolicyOptions
from turngym.learner.losses.value import ValueObjective
from turngym.learner.options import AlgoOptions, KlOptions
from turngym.learner.ranks.roles import Roles
from turngym.learner.ranks.schedule import Schedule
from turngym.learner.rewards.shaping import Shaping
from turngym.learner.run.batch_plan import BatchPlan
from turngym.learner.run.checkpoint import CheckpointFolder
from turngym.learner.run.folder import RunFolder
from turngym.learner.run.progress import Progress
from turngym.learner.run.report import Scores
from turngym.learner.run.saving import save
from turngym.learner.steps.frontier import Frontier

SAMPLING = Sampling(max_tokens=4)
BATCHES = BatchPlan(2, 4, 2)
TASKS = [Task(id=f"task {index}") for index in range(10)]


@dataclass
class Script:
    """What the parts are to do, what they did, and whether the run was asked to stop."""

    stop_in: str = ""  # "rollout 3", "update 2", "eval 1": counted from 1
    fail_in: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    trained: list[int] = field(default_factory=list)  # attempts of each update that was taken
    rolled_out: list[list[str]] = field(default_factory=list)
    is_stopped: bool = False
    run: Any = None  # the Run, for when the loop raises

    def enter(self, what: str) -> str:
        self.counts[what] = self.counts.get(what, 0) + 1
        name = f"{what} {self.counts[what]}"
        self.is_stopped |= name == self.stop_in
        return name


def trajectory(task: Task, attempt: int, version: int, *, fails: bool = False) -> Trajectory:
    is_action = np.array([False, True, True])
    tokens = Tokens(
        token_ids=np.array([1, 2, 3], np.int32),
        is_action=is_action,
        logprobs=np.where(is_action, -1.0, np.nan).astype(np.float32),
        versions=np.where(is_action, version, -1).astype(np.int32),
        turn=np.where(is_action, 0, -1).astype(np.int32),
        samplings={0: SAMPLING},
    )
    failure = Failure(FailureKind.ENV, "broken", 0) if fails else None
    end = EndReason.FAILED if fails else EndReason.TERMINATED
    return Trajectory(task, attempt, (tokens,), (), np.array([float(attempt)]), (TurnEnd.STOP,), end, failure)


class StepRollouts:
    """A real dispatcher without a thread: what is ordered is there at once, the last first."""

    def __init__(self, script: Script, sync: "FakeSync", frontier: Frontier, pace: Pace) -> None:
        self._script, self._sync = script, sync
        plan = RolloutPlan(tuple(range(4)), SAMPLING)
        self._dispatcher = Dispatcher(frontier, pace, plan)
        self.counts = self._dispatcher.counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatcher, name)

    def begin_batch(self, version: int, num_batches_left: int) -> None:
        self._dispatcher.begin_batch(version, num_batches_left, 0.0)

    def take(self, count: int, should_stop: Callable[[], bool], on_idle: Callable[[], None]) -> Taken | None:
        name = self._script.enter("rollout")
        on_idle()
        if should_stop():
            return None
        if (taken := self._dispatcher.take(count, 0.0)) is not None:
            return taken
        orders: list[Order] = []
        self._dispatcher.orders(lambda order: orders.append(order) or True, 0.0)
        self._script.rolled_out.append([order.task.id for order in orders])
        for order in reversed(orders):
            self._dispatcher.note(Outcome(order, self._attempts(order, name == self._script.fail_in)), 0.0)
        return self._dispatcher.take(count, 0.0)

    def run_all(self, tasks, numbers, sampling, should_stop, on_done, on_idle) -> list[Group] | None:
        self._script.enter("eval")
        if should_stop():
            return None
        orders = [Order(0, task, numbers, sampling) for task in tasks]
        return [Group(order.task, self._attempts(order, False)) for order in orders]

    def state(self, of_source: Callable[[tuple[int, ...]], Any]) -> Any:
        state = self._dispatcher.state()
        return state, of_source(state.running)

    def _attempts(self, order: Order, fails: bool) -> tuple[Trajectory, ...]:
        return tuple(trajectory(order.task, n, self._sync.version, fails=fails) for n in order.numbers)


@dataclass
class FakeSync:
    version: int = 2
    num_brought: int = 0
    fails_at: int | None = None

    def bring(self) -> None:
        self.num_brought += 1

    def publish(self) -> float:
        self.version += 1
        if self.version == self.fails_at:
            raise EngineDeadError("no replacement is left")
        return 0.0


@dataclass
class FakeRanks:
    script: Script

    def batch_scores(self, batch: Any, role: str) -> Any:
        return None if self.script.is_stopped else np.full(batch.num_tokens, -1.0, np.float32)

    def train(self, part: Any, objective: Any, lr: float, *, may_stop: bool, version: int) -> dict[str, float] | None:
        self.script.enter("update")
        if may_stop and self.script.is_stopped:
            return None
        self.script.trained.append(part.num_attempts)
        return {"policy/lr": lr}

    def save(self, folder: str, tag: str, state: dict[str, Any]) -> None:
        self.script.enter("save")


@dataclass
class FakeInterrupt:
    script: Script

    def is_set(self) -> bool:
        return self.script.is_stopped


@dataclass
class Run:
    """One run of the loop and what it left."""

    script: Script
    state: LoopState
    scores: Scores
    rows: list[dict[str, Any]]
    parts: Parts


@pytest.fixture
def run(tmp_path: Path):
    """Run the loop by a script, from the start or from where an earlier run stopped."""

    def go(
        script: Script,
        after: Run | None = None,
        num_steps: int = 4,
        tasks: Any = TASKS,
        sync: FakeSync | None = None,
        batches: BatchPlan = BATCHES,
        **changes: Any,
    ) -> Run:
        sync = sync or (FakeSync() if after is None else cast(FakeSync, after.parts.sync))
        frontier = Frontier(tasks, 2, 0, "f")
        state = LoopState(frontier.state())
        if after is not None:
            frontier.restore(after.state.frontier)
            state = replace(after.state, saved_step=after.state.step, is_interrupted=False)
        parts = Parts(
            eval_tasks=[TASKS[8], TASKS[8], TASKS[9]],  # a held-out set may repeat itself
            frontier=frontier,
            fleet=cast(Any, None),
            rollouts=cast(Any, StepRollouts(script, sync, frontier, Pace(batches.tasks_per_step))),
            roles=Roles([(("actor",), cast(Any, FakeRanks(script)))]),
            reward_reader=None,
            teacher=None,
            value_objective=ValueObjective(None),
            critic_schedule=Schedule("constant_with_warmup", 10),
            sync=cast(Any, sync),
            objective=Objective("ppo", PolicyOptions(), "token-mean", "off", "truncate", (0.0, 2.0)),
            schedule=Schedule("linear", 8),
            checkpoints=CheckpointFolder(tmp_path / "checkpoints", 3),
            written_by={},
            folder=RunFolder(tmp_path / "run", resumes=True),
            progress=Progress(num_steps),
            interrupt=cast(Any, FakeInterrupt(script)),
        )
        numbers: dict[str, Any] = {
            "batches": batches,
            "num_steps": num_steps,
            "num_epochs": 1,
            "sampling": SAMPLING,
            "eval_sampling": SAMPLING,
            "eval_attempts": 1,
            "eval_every": -1,
            "eval_at_start": False,
            "eval_at_end": False,
            "save_every": -1,
            "algo": AlgoOptions(kl=KlOptions(init_coef=0.0)),
            "shaping": Shaping(1.0, None, (-10.0, 10.0), 0.0, 1.0, None, False, 100, 100),
            "peak_lr": 8.0,
            "critic_peak_lr": 1.0,
            "freezing_steps": -1,
            "runs_ahead": False,
            "max_failed_fraction": 0.5,
            "trajectories_per_step": 1,
        }
        scores = Scores({}) if after is None else after.scores
        rows = [] if after is None else after.rows
        result = script.run = Run(script, state, scores, rows, parts)
        run_loop(parts, LoopSettings(**(numbers | changes)), state, scores, rows)
        return result

    return go


def test_steps_updates_and_learning_rates(run):
    done = run(Script())
    assert (done.state.step, done.state.optimizer_steps, done.state.is_interrupted) == (4, 8, False)
    assert done.script.trained == [4] * 8
    # Linear from 8 to 0 over 8 updates, of which a step takes two: (7 + 6) / 2, ...
    assert [row["policy/lr"] for row in done.rows] == [6.5, 4.5, 2.5, 0.5]
    assert [row["version"] for row in done.rows] == [3, 4, 5, 6]


@pytest.mark.parametrize("moment", ["rollout 3", "update 5"])
def test_a_step_that_is_cut_short_leaves_no_trace_and_is_taken_again(run, moment):
    whole = run(Script()).script.rolled_out
    first = run(Script(stop_in=moment))
    assert first.state.is_interrupted
    assert (first.state.step, first.state.optimizer_steps, len(first.rows)) == (2, 4, 2)
    second = run(Script(), after=first)
    assert [row["step"] for row in second.rows] == [1, 2, 3, 4]
    assert first.script.rolled_out[:2] + second.script.rolled_out == whole


def test_a_step_whose_weights_have_moved_is_finished_first(run):
    whole = run(Script()).script.rolled_out
    first = run(Script(stop_in="update 6"))  # the second of step 3
    assert first.script.trained == [4] * 6
    assert (first.state.step, first.state.optimizer_steps, len(first.rows)) == (3, 6, 3)
    second = run(Script(), after=first)
    assert first.script.rolled_out + second.script.rolled_out == whole  # no task is trained on twice


def test_an_evaluation_that_is_cut_short_keeps_its_step_and_is_made_up_for(run):
    whole = run(Script(), eval_every=2).script.rolled_out
    first = run(Script(stop_in="eval 1"), eval_every=2)
    assert first.state.is_interrupted
    assert (first.state.step, len(first.rows), first.scores.by_step) == (2, 2, {})
    second = run(Script(), after=first, eval_every=2)
    assert first.script.rolled_out + second.script.rolled_out == whole
    assert second.scores.by_step == {2: 0.0, 4: 0.0}


def test_the_last_evaluation_is_made_up_for(run):
    first = run(Script(stop_in="eval 2"), eval_at_start=True, eval_at_end=True)
    assert first.state.is_interrupted
    assert (first.state.step, sorted(first.scores.by_step)) == (4, [0])
    second = run(Script(), after=first, eval_at_start=True, eval_at_end=True)
    assert (second.script.rolled_out, sorted(second.scores.by_step)) == ([], [0, 4])


def test_every_few_steps_holds_for_the_last_step_too(run):
    assert sorted(run(Script(), eval_every=2).scores.by_step) == [2, 4]


def test_the_last_step_is_that_of_the_last_task(run):
    """Where fewer tasks are left than the number of steps says, as after a change of the batch size."""
    done = run(Script(), num_steps=99, eval_at_end=True)
    assert done.state.step == 10  # two passes over ten tasks, two at a time
    assert sorted(done.scores.by_step) == [10]


def test_a_step_may_hold_a_task_twice(run):
    """Three tasks, two passes, four at a time: the second pass begins within the step."""
    done = run(Script(), tasks=TASKS[:3], num_steps=2, batches=BatchPlan(4, 4, 1))
    first = done.script.rolled_out[0]
    assert len(set(first)) == 3 < len(first)
    assert done.script.trained == [16, 8]


def test_too_many_failures_stop_the_run_after_its_last_whole_step(run):
    script = Script(fail_in="rollout 3")
    with pytest.raises(TrajectoryError, match=r"8 of 8 attempts .* env: broken"):
        run(script)
    assert script.trained == [4] * 4
    assert (script.run.state.step, script.run.state.frontier.position) == (2, 4)


def test_a_few_last_tasks_that_all_fail_do_not_spoil_a_run(run, capsys):
    """Six draws, four a step: the two of the second step fail, and too few attempts came to say that too many do."""
    done = run(Script(fail_in="rollout 2"), tasks=TASKS[:3], num_steps=9, batches=BatchPlan(4, 4, 1))
    assert (done.state.step, done.script.trained) == (1, [16])
    assert "no task is left" in capsys.readouterr().err


def test_too_few_attempts_to_fill_a_step_stop_the_run_if_they_all_fail_at_its_start(run):
    with pytest.raises(TrajectoryError, match="8 of 8 attempts"):
        run(Script(fail_in="rollout 1"), tasks=TASKS[:1], batches=BatchPlan(4, 4, 1))


def test_a_step_is_whole_once_its_updates_are_taken_even_if_no_engine_hears_of_it(run):
    """What is saved then must not have its tasks trained on again."""
    script = Script()
    with pytest.raises(EngineDeadError):
        run(script, sync=FakeSync(fails_at=5))
    assert script.trained == [4] * 6
    assert (script.run.state.step, script.run.state.frontier.position) == (3, 6)


def test_a_step_behind_which_something_fails_is_in_the_books(run, tmp_path):
    """A resumed run does not take it again, and its schedule has no gap."""
    script = Script()
    with pytest.raises(EngineDeadError):
        run(script, sync=FakeSync(fails_at=5))
    assert script.run.state.step == 3
    for name in ("metrics.jsonl", "schedule.jsonl"):
        lines = (tmp_path / "run" / name).read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    second = run(Script(), after=script.run, sync=FakeSync(version=5))
    assert [row["step"] for row in second.rows] == [1, 2, 3, 4]


def test_without_a_number_of_steps_the_run_ends_with_its_tasks(run):
    """As where batches that were cut short left some for later."""
    done = run(Script(), num_steps=4, ends_with_tasks=True, eval_every=-1, eval_at_end=True)
    assert (done.state.step, sorted(done.scores.by_step)) == (10, [10])


def test_a_step_with_nothing_to_learn_from_is_skipped_aloud(run, capsys):
    """All attempts of a task have the same reward."""
    shaping = Shaping(1e-9, None, (5.0, 6.0), 0.0, 1.0, None, False, 100, 100)
    done = run(Script(), num_steps=2, shaping=shaping)
    assert (done.state.step, done.state.optimizer_steps, done.script.trained) == (2, 0, [])
    assert [row["version"] for row in done.rows] == [2, 2]  # the engines have these weights already
    assert capsys.readouterr().err.count("this update has no gradient and is skipped") == 4


def test_a_filter_that_leaves_everything_out_uses_the_tasks_up_and_says_so(run, capsys):
    """Attempt n has reward n, so all means, 1.5, are out of range."""
    algo = AlgoOptions(kl=KlOptions(init_coef=0.0), dynamic_filtering_enable=True, dynamic_filtering_range=(5.0, 6.0))
    done = run(Script(), algo=algo)
    assert (done.state.step, done.script.trained, len(done.script.rolled_out)) == (0, [], 10)
    assert "no task is left" in capsys.readouterr().err


def test_a_checkpoint_stands_after_a_whole_step_and_is_not_written_twice(run):
    first = run(Script(stop_in="rollout 3"), save_every=2)
    save(first.parts, first.state, first.scores)
    assert first.script.counts["save"] == 1
    checkpoint, _ = first.parts.checkpoints.newest()
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.state["optimizer_steps"], checkpoint.state["version"]) == (2, 4, 4)
    assert checkpoint.state["frontier"]["position"] == 4


def test_a_full_disk_costs_traces_and_not_the_run(run, tmp_path, small_disk, capsys):
    (tmp_path / "run").symlink_to(small_disk)  # checkpoints lie elsewhere
    fill(small_disk)
    done = run(Script(), eval_every=2)
    assert (done.state.step, done.state.optimizer_steps) == (4, 8)
    assert [row["store/lost"] for row in done.rows] == [1] * 4
    assert sorted(done.scores.by_step) == [2, 4]
    said = capsys.readouterr().err
    assert said.count("WARNING: 1 trajectories of step") == 4
    assert said.count("WARNING: 3 trajectories of step") == 2  # of the evaluations
    assert said.count("WARNING: the numbers of this step cannot be written") == 4
    assert "free some space" in said


def test_where_nothing_is_lost_the_metrics_say_so(run):
    assert [row["store/lost"] for row in run(Script()).rows] == [0] * 4


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as file:
        assert file.write(bytes(1 << 20)) < 1 << 20  # as much as there is room for
