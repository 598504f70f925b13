"""An engine pays for its own deaths; those that environments cause are free, but not without end."""

import pytest

from turngym.agents.base import Sampling
from turngym.envs.task import Task
from turngym.executors.episodes.trajectory import FailureKind
from turngym.executors.fleet.fleet_engine import EngineState, Order
from turngym.executors.fleet.restarts import FREE_IN_A_ROW, Restarts, lost_outcomes
from turngym.executors.pools.watchdog import Blocking

BLOCKING = Blocking("Slow.step", 61.0, "b/7")


def order(key: int, task: str, *numbers: int) -> Order:
    return Order(key, Task(id=task), numbers, Sampling(max_tokens=1))


def test_a_death_of_its_own_costs_an_engine_a_restart_and_an_environments_costs_none() -> None:
    restarts, engine = Restarts(2), EngineState(0, None)
    assert restarts.take(engine)
    engine.blocking = BLOCKING
    for _ in range(FREE_IN_A_ROW):
        assert restarts.take(engine)
    engine.num_blocked = 0  # an attempt came back
    for _ in range(FREE_IN_A_ROW):
        assert restarts.take(engine)
    assert [restarts.take(engine) for _ in range(2)] == [True, False]  # nothing comes back any more
    engine.blocking = None
    assert not restarts.take(engine)
    assert restarts.num_taken == 2 + 2 * FREE_IN_A_ROW


def test_the_attempts_of_the_order_that_blocked_have_failed_and_the_others_are_lost_for_no_fault() -> None:
    orders = [order(0, "a", 0, 1), order(1, "b", 0, 1), order(2, "b", 6, 7), order(3, "b/7", 0)]
    outcomes = {outcome.order.key: outcome for outcome in lost_outcomes(orders, BLOCKING)}
    failed = outcomes.pop(2)
    assert [(t.attempt, t.failure.kind, t.failure.message) for t in failed.trajectories if t.failure] == [
        (
            number,
            FailureKind.ENV,
            "Slow.step has blocked the event loop for 61 s, in episode 'b/7'; its engine's process had to be ended",
        )
        for number in (6, 7)
    ]
    assert failed.lost == ()
    assert {(key, o.trajectories, o.lost, o.is_blameless) for key, o in outcomes.items()} == {
        (0, (), (0, 1), True),
        (1, (), (0, 1), True),
        (3, (), (0,), True),
    }


def test_the_side_of_a_game_that_was_not_asked_for_blocks_it_too() -> None:
    (outcome,) = lost_outcomes([order(1, "b", 6)], BLOCKING)
    assert [t.attempt for t in outcome.trajectories] == [6]


@pytest.mark.parametrize("blocking", [None, Blocking("Slow.close", 61.0, "Task-12")])
def test_where_nobody_is_to_blame_all_orders_are_lost(blocking: Blocking | None) -> None:
    (outcome,) = lost_outcomes([order(0, "a", 0, 1)], blocking)
    assert (outcome.trajectories, outcome.lost, outcome.is_blameless) == ((), (0, 1), False)
