"""Every task once per pass, in an order and at a position that survive a restart."""

import itertools
import json
from dataclasses import asdict

import pytest

from turngym.envs.mixed_tasks import mixed
from turngym.envs.task import Task
from turngym.errors import ConfigError
from turngym.executors.rollouts.draws import Draw
from turngym.learner.steps.frontier import Frontier, FrontierState


def make(num_tasks: int = 10, num_passes: int = 2, seed: int = 3, fingerprint: str = "a") -> Frontier:
    return Frontier([Task(id=str(index)) for index in range(num_tasks)], num_passes, seed, fingerprint)


def drawn(frontier: Frontier, count: int = 10**6) -> list[Draw]:
    draws = []
    while len(draws) < count and (draw := frontier.draw()) is not None:
        draws.append(draw)
    return draws


def names(draws: list[Draw]) -> list[int]:
    return [int(draw.task.id) for draw in draws]


def test_every_task_comes_once_per_pass_and_the_end_drops_nothing():
    frontier = make()
    assert frontier.num_left == 20
    draws = drawn(frontier)
    assert frontier.num_left == 0
    assert [draw.serial for draw in draws] == list(range(20))
    assert sorted(names(draws)[:10]) == sorted(names(draws)[10:]) == list(range(10))
    assert names(draws)[:10] != names(draws)[10:]


def test_what_is_given_back_is_drawn_next_the_oldest_first():
    frontier = make()
    draws = drawn(frontier, 5)
    for place in (3, 0):
        frontier.give_back(draws[place])
    assert frontier.num_left == 17
    assert drawn(frontier, 3) == [draws[0], draws[3], make().named(5)]


def test_a_restored_frontier_goes_on_in_the_same_order():
    expected = drawn(make())
    first, second = make(), make()
    begun = drawn(first, 12)  # over the end of the first pass
    assert second.restore(first.state()) is None
    assert begun + drawn(second) == expected


@pytest.mark.slow
def test_a_thousand_tasks_in_batches_of_128_go_on_at_offset_24_of_the_second_pass():
    """R46: after update 8, 1,024 were drawn; whoever counts 7 batches a pass goes on at 128, and 104 are never seen."""
    expected = names(drawn(make(1000, 2)))
    first, second = make(1000, 2), make(1000, 2)
    begun = [names(drawn(first, 128)) for _ in range(8)]
    state = FrontierState(**json.loads(json.dumps(asdict(first.state()))))
    assert (state.position, divmod(state.position, 1000)) == (1024, (1, 24))
    assert second.restore(state) is None
    rest = names(drawn(second))
    assert [*itertools.chain(*begun), *rest] == expected
    assert rest[:104] == expected[1024:1128]
    assert sorted(expected) == sorted([*range(1000)] * 2)


def test_what_ran_when_the_state_was_taken_is_drawn_again_first():
    first, second = make(), make()
    draws = drawn(first, 12)
    first.give_back(draws[4])
    assert second.restore(first.state(running=(11, 2))) is None
    assert [draw.serial for draw in drawn(second)] == [2, 4, 11, *range(12, 20)]


def test_a_state_without_open_draws_is_read_as_one_of_an_earlier_version():
    frontier = make()
    assert frontier.restore(FrontierState("a", 3, 7)) is None
    assert frontier.draw() == make().named(7)


def test_other_tasks_begin_anew_and_say_so():
    first, second = make(1000, 1), make(20, 1, fingerprint="b")
    drawn(first, 500)
    complaint = second.restore(first.state())
    assert complaint is not None
    assert "another set of tasks" in complaint
    assert second.num_left == 20


def test_no_tasks_are_refused():
    with pytest.raises(ConfigError, match="no tasks"):
        make(0)


def test_a_pass_over_a_mixture_keeps_to_its_weights_everywhere():
    parts = {name: [Task(f"{name}{index}") for index in range(size)] for name, size in (("a", 8), ("b", 4))}
    frontier = Frontier(mixed(parts, {"a": 2.0, "b": 1.0}), 2, 3, "f")
    draws = [draw.task.id for draw in drawn(frontier)]
    assert [one[0] for one in draws] == list("aba" * 8)
    assert sorted(draws[:12]) == sorted(draws[12:])
    assert draws[:12] != draws[12:]
