"""Engines are told which orders are older, so that the tail of a batch does not queue behind later ones."""

from turngym.agents.base import Sampling
from turngym.envs.task import Task
from turngym.executors.fleet.fleet_engine import Order, Outcome
from turngym.executors.rollouts.dispatch import Dispatcher, Job, RolloutPlan
from turngym.executors.rollouts.draws import Draw
from turngym.executors.rollouts.pacing import Pace


class Numbers:
    """Tasks without end."""

    num_left = 100

    def __init__(self) -> None:
        self._serial = -1

    def draw(self) -> Draw:
        self._serial += 1
        return Draw(self._serial, Task(id=str(self._serial)))

    def give_back(self, draw: Draw) -> None:
        raise AssertionError(draw)


def test_an_order_that_was_lost_goes_before_what_was_begun_after_it():
    dispatcher = Dispatcher(Numbers(), Pace(2, 1, 1), RolloutPlan((0, 1), Sampling(8)))
    orders: list[Order] = []

    def submit(order: Order) -> bool:
        orders.append(order)
        return True

    dispatcher.begin_batch(0, 9, 0.0)
    dispatcher.orders(submit, 0.0)
    dispatcher.note(Outcome(orders[1], (), (0, 1)), 0.0)
    dispatcher.orders(lambda order: False, 0.0)  # no engine lives for a while
    dispatcher.add(Job(Task(id="held-out"), (0,), Sampling(4), 0, done=lambda group: None))
    dispatcher.orders(submit, 0.0)
    assert [(order.key, order.task.id, order.sampling.priority) for order in orders] == [
        (0, "0", 0),
        (1, "1", 1),
        (2, "2", 2),
        (3, "3", 3),
        (4, "1", 1),
        (5, "held-out", 5),
    ]
    assert orders[5].sampling.max_tokens == 4
