"""Bursts go out whole, one after the other, and come back whole, in the order of their keys."""

from collections.abc import Sequence

from turngym.envs.task import Task
from turngym.executors.fleet.fleet_engine import Order, Outcome
from turngym.executors.rollouts.bursts import Bursts

from ..attempts import SAMPLING, outcome


class Engines:
    """Keeps what it gets, and gives back what it is told to."""

    def __init__(self) -> None:
        self.lives = True
        self.bursts: list[list[int]] = []
        self.came: list[Outcome] = []
        self.cancelled: list[int] = []

    def submit(self, order: Order) -> bool:
        raise AssertionError("an order went out by itself")

    def submit_burst(self, orders: Sequence[Order]) -> bool:
        if self.lives:
            self.bursts.append([order.key for order in orders])
        return self.lives

    def poll(self, timeout_s: float) -> list[Outcome]:
        came, self.came = self.came, []
        return came

    def cancel(self, keys: Sequence[int]) -> None:
        self.cancelled += keys


def order(key: int) -> Order:
    return Order(key, Task(id=str(key)), (0,), SAMPLING)


def keys(outcomes: list[Outcome]) -> list[int]:
    return [one.order.key for one in outcomes]


def test_a_burst_goes_out_whole_and_comes_back_whole():
    engines = Engines()
    bursts = Bursts(engines)
    assert all(bursts.submit(order(key)) for key in (0, 1, 2))
    assert engines.bursts == []
    assert bursts.poll(0) == []
    assert engines.bursts == [[0, 1, 2]]
    assert not bursts.submit(order(3))  # it waits with who gives it out
    engines.came = [outcome(order(2)), outcome(order(0))]
    assert bursts.poll(0) == []
    engines.came = [outcome(order(1))]
    assert keys(bursts.poll(0)) == [0, 1, 2]
    assert bursts.submit(order(3))
    assert bursts.poll(0) == []
    assert engines.bursts[1:] == [[3]]


def test_what_is_cancelled_is_waited_for_no_longer():
    engines = Engines()
    bursts = Bursts(engines)
    assert all(bursts.submit(order(key)) for key in (0, 1, 2))
    bursts.cancel([0])
    assert bursts.poll(0) == []
    assert engines.bursts == [[1, 2]]
    engines.came = [outcome(order(1))]
    assert bursts.poll(0) == []
    bursts.cancel([2])
    engines.came = [outcome(order(2))]  # it was over by then
    assert keys(bursts.poll(0)) == [1]
    assert engines.cancelled == [0, 2]


def test_a_burst_waits_for_an_engine():
    engines = Engines()
    engines.lives = False
    bursts = Bursts(engines)
    assert bursts.submit(order(0))
    assert bursts.poll(0) == []
    assert bursts.submit(order(1))
    engines.lives = True
    assert bursts.poll(0) == []
    assert engines.bursts == [[0, 1]]
