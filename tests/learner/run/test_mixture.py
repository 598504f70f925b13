"""One run over several families of environments."""

from pathlib import Path

import pytest

from turngym.envs.resolution import resolve
from turngym.executors.episodes.limits import Limits
from turngym.executors.pools.breaker import BreakerState
from turngym.executors.rollouts import rollouts as rollouts_module
from turngym.executors.rollouts.pacing import Pace
from turngym.learner.ranks.schedule import Schedule
from turngym.source_file import import_file

from ..toy_run import Running, Toy

ENVS = Path(__file__).parents[1] / "mixed_envs.py"
MIXTURE = [{"id": f"{ENVS}:Steady", "weight": 2}, f"{ENVS}:Broken"]


@pytest.fixture(autouse=True)
def _anew(monkeypatch):
    monkeypatch.setattr(rollouts_module, "POLL_S", 0.005)
    monkeypatch.setattr(import_file(str(ENVS)), "num_begun", 0)
    Schedule("linear", 9).factor(1)  # imports transformers' schedules, which would hold up environments


@pytest.mark.slow
def test_where_one_family_breaks_the_other_goes_on(tmp_path):
    """Two of three tasks are Steady's. Broken's first group is whole; then its breaker opens, and it alone is out."""
    env = resolve("Mixture", {"envs": MIXTURE})
    toy = Toy(
        tmp_path,
        env=env,
        tasks=env.tasks("train", 0),
        num_passes=1,
        batch=3,
        pace=Pace(3),
        members=("Steady", "Broken"),
        pool={"max_wait_s": 0.2},
        limits=Limits(max_turns=2, env_timeout_s=3.0),
        settings={"eval_at_start": True},
        eval_tasks=env.tasks("eval", 0)[:6],
    )
    running = Running(toy)
    running.go()
    rows, families = running.standing.rows, running.pool.stats().families

    drawn = {serial: running.frontier.named(serial).task.id for serial in range(12)}
    trained = [drawn[serial] for serial in running.books.trained]
    assert sorted(one for one in trained if one.startswith("Steady/")) == sorted(
        f"Steady/steady train {number}" for number in range(8)
    )
    assert sum(one.startswith("Broken/") for one in trained) == 1
    assert running.rollouts.counts["groups_dropped"] == 3

    assert [rows[0][f"attempts/{name}/number"] for name in ("Steady", "Broken")] == [8, 4]
    assert rows[0]["reward/Broken/mean"] == 0.5
    assert 0 <= rows[0]["reward/Steady/mean"] <= 1
    assert rows[0]["reward/mean"] == pytest.approx((8 * rows[0]["reward/Steady/mean"] + 4 * 0.5) / 12)
    assert "reward/Broken/mean" not in rows[-1]
    assert sum(row["attempts/Broken/failed"] for row in rows) == 12
    assert sum(row["attempts/Steady/failed"] for row in rows) == 0

    assert set(families) == {"Steady", "Broken"}
    assert families["Steady"].breaker is BreakerState.CLOSED
    assert families["Steady"].num_failures == 0
    assert families["Broken"].num_opened > 0
    failures = [one.trajectory.failure for one in running.run_folder.train_store.read()]
    assert any(f is not None and "Broken.reset had to wait" in f.message and "it broke" in f.message for f in failures)

    held_out = running.standing.scores.by_member[0]  # when it was whole
    assert (set(held_out), held_out["Broken"]) == ({"Steady", "Broken"}, 0.5)
    assert running.standing.scores.by_step[0] == pytest.approx((4 * held_out["Steady"] + 2 * 0.5) / 6)
    assert running.lines[1].endswith(f"(Steady {held_out['Steady']:.3f}, Broken 0.500) on 6 tasks")
