"""Tasks of several members in one set: in which order, how many, and under what ids."""

import numpy as np
import pytest

from turngym.envs.mixed_tasks import MixedTasks, member_of, mixed, own_task, pass_order
from turngym.envs.task import LazyTasks, Task, seeded_tasks
from turngym.errors import ConfigError


def tasks(name: str, size: int) -> list[Task]:
    return [Task(f"{name}{index}", label=index) for index in range(size)]


def letters(mixture: MixedTasks) -> str:
    return "".join(task.id[0] for task in mixture)


def ids(mixture) -> list[str]:
    return [task.id for task in mixture]


def test_members_take_turns_by_weight_and_the_shorter_begins_again():
    """Of weights 2 and 1: a at 1/4, 3/4, 5/4, 7/4, b at 1/2, 3/2; the last a, at 7/4, is the end."""
    mixture = mixed({"a": tasks("x", 4), "b": tasks("y", 1)}, {"a": 2.0, "b": 1.0})
    assert ids(mixture) == ["a/x0", "b/y0", "a/x1", "a/x2", "b+1/y0", "a/x3"]
    assert [own_task(task) for task in mixture][:2] == [Task("x0", label=0), Task("y0", label=0)]
    assert [member_of(task.id) for task in mixture] == ["a", "b", "a", "a", "b", "a"]


def test_what_is_drawn_from_seeds_is_not_waited_for():
    """Three tasks of a dataset at a third of all: six of the endless ones stand between them, and not 100,000."""
    mixture = mixed({"a": tasks("x", 3), "b": seeded_tasks("B", "train", 0)}, {"a": 1.0, "b": 2.0})
    assert letters(mixture) == "babbabba"  # the last x, at 5/2, is the end; the b after it, at 11/4, stays out
    assert len(set(ids(mixture))) == len(mixture)


def test_where_all_are_endless_none_comes_twice():
    parts = {"a": LazyTasks(4, lambda i: Task(str(i)), is_endless=True), "b": seeded_tasks("B", "train", 0)}
    assert letters(mixed(parts, {"a": 2.0, "b": 1.0})) == "abaaba"


def test_equal_weights_of_equal_sizes_alternate_in_the_order_given():
    assert letters(mixed({"b": tasks("y", 3), "a": tasks("x", 3)}, {"a": 5.0, "b": 5.0})) == "bababa"


@pytest.mark.parametrize("weights", [(2.0, 1.0, 0.5), (1.0, 3.0, 7.0), (0.1, 0.3, 0.2)])
def test_any_stretch_holds_each_members_share(weights):
    parts = {name: tasks(name, size) for name, size in zip("abc", (400, 300, 200), strict=True)}
    mixture = mixed(parts, dict(zip("abc", weights, strict=True)))
    text = letters(mixture)
    for name, weight in zip("abc", weights, strict=True):
        assert text.count(name) >= len(parts[name])  # every task comes
        for size in range(1, len(text), 7):
            share = size * weight / sum(weights)
            assert abs(text[:size].count(name) - share) < 2
    assert min(text.count(name) - len(parts[name]) for name in "abc") == 0  # and then it ends
    assert len(set(ids(mixture))) == len(mixture)


def test_a_pass_shuffles_each_members_tasks_among_its_own_places():
    mixture = mixed({"a": tasks("x", 40), "b": tasks("y", 8)}, {"a": 2.0, "b": 1.0})
    order = pass_order(mixture, np.random.default_rng(3))
    assert sorted(order) == list(range(len(mixture)))
    assert [mixture[int(place)].id[0] for place in order] == list(letters(mixture))
    assert list(order) == list(pass_order(mixture, np.random.default_rng(3)))
    assert list(order) != list(pass_order(mixture, np.random.default_rng(4)))
    b = [mixture[int(place)].id for place in order if mixture[int(place)].id.startswith("b")]
    assert sorted(b[:8]) == [f"b/y{index}" for index in range(8)]  # all of them before one comes again
    assert b[:8] != sorted(b[:8])
    assert all(one.startswith("b+1/") for one in b[8:16])


def test_other_tasks_are_permuted_as_ever():
    assert list(pass_order(tasks("x", 9), np.random.default_rng([5, 0]))) == list(
        np.random.default_rng([5, 0]).permutation(9)
    )


def test_a_part_of_a_mixture_is_one_too():
    mixture = mixed({"a": tasks("x", 4), "b": tasks("y", 2)}, {"a": 2.0, "b": 1.0})
    assert ids(mixture[:3]) == ["a/x0", "b/y0", "a/x1"]
    assert isinstance(mixture[:3], MixedTasks)
    assert mixture[-1].id == "a/x3"


def test_weights_too_far_apart_are_named():
    with pytest.raises(ConfigError, match=r"1.95e\+09 of them, .*: a 10 of weight 1, b 20 of weight 1e-08; bring"):
        mixed({"a": tasks("x", 10), "b": tasks("y", 20)}, {"a": 1.0, "b": 1e-8})
