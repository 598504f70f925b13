"""Every task once per pass, in an order and at a position that survive a restart."""

import pytest

from turngym.errors import ConfigError
from turngym.learner.frontier import Frontier


def drain(frontier: Frontier, size: int) -> list[list[int]]:
    batches = []
    while frontier.num_left:
        batches.append(frontier.take(size))
    return batches


def test_every_task_comes_once_per_pass_and_the_end_drops_nothing():
    batches = drain(Frontier(10, 2, seed=1, fingerprint="a"), 4)
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4]
    tasks = [task for batch in batches for task in batch]
    assert sorted(tasks[:10]) == sorted(tasks[10:]) == list(range(10))
    assert tasks[:10] != tasks[10:]


def test_the_last_batch_is_what_is_left():
    assert [len(batch) for batch in drain(Frontier(10, 1, seed=1, fingerprint="a"), 4)] == [4, 4, 2]


def test_a_restored_frontier_goes_on_in_the_same_order():
    whole = Frontier(10, 2, seed=3, fingerprint="a")
    expected = drain(whole, 3)
    first = Frontier(10, 2, seed=3, fingerprint="a")
    begun = [first.take(3) for _ in range(4)]  # over the end of the first pass
    second = Frontier(10, 2, seed=3, fingerprint="a")
    assert second.restore(first.state()) is None
    assert begun + drain(second, 3) == expected


def test_other_tasks_begin_anew_and_say_so():
    first = Frontier(1000, 1, seed=3, fingerprint="a")
    first.take(500)
    second = Frontier(20, 1, seed=3, fingerprint="b")
    complaint = second.restore(first.state())
    assert complaint is not None
    assert "another set of tasks" in complaint
    assert second.num_left == 20


def test_no_tasks_are_refused():
    with pytest.raises(ConfigError, match="no tasks"):
        Frontier(0, 1, seed=1, fingerprint="a")
