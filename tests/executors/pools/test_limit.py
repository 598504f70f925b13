import math

import numpy as np
import pytest

from turngym.executors.pools.limit import AdaptiveLimit


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def window(limit, clock, seconds, *, running, num_errors=0, num_calls=20):
    """Fill one window: 20 calls over a second, the last of which moves the limit."""
    for number in range(num_calls):
        if number == num_calls - 1:
            clock.now += max(1.0, seconds) + 0.01
        limit.record("step", seconds, is_error=number < num_errors, num_running=running)


def test_it_moves_as_worked_out_by_hand():
    clock = Clock()
    limit = AdaptiveLimit(clock=clock)
    window(limit, clock, 0.1, running=100)
    assert math.isinf(limit.value)  # nothing is too much yet
    window(limit, clock, 0.3, running=100)
    assert limit.value == pytest.approx(100 * 2 / 3)  # 3 times the usual where 2 times is borne
    window(limit, clock, 0.3, running=60)
    assert limit.value == pytest.approx(100 * 2 / 3)  # calls from before the cut are not held against it
    window(limit, clock, 0.1, running=60)
    assert limit.value == pytest.approx(100 * 2 / 3 + math.sqrt(100 * 2 / 3))
    before = limit.value
    window(limit, clock, 0.1, running=10)
    assert limit.value == before  # not even half of it was used
    window(limit, clock, 12.0, running=70)
    assert limit.value == 70 * 0.5  # never less than half at once


def test_what_is_as_slow_with_fewer_becomes_the_usual():
    """Steps become 5 times as long, for a reason of their own: one cut, then the limit grows again."""
    clock = Clock()
    limit = AdaptiveLimit(clock=clock)
    window(limit, clock, 0.1, running=100)
    values = []
    for _ in range(30):
        window(limit, clock, 0.5, running=math.floor(min(100, limit.value)))
        values.append(limit.value)
    assert min(values) == 50
    assert values[-1] > 100


def test_errors_beyond_the_usual_share_move_it_too():
    clock = Clock()
    limit = AdaptiveLimit(clock=clock)
    window(limit, clock, 0.1, running=50, num_errors=2)
    assert math.isinf(limit.value)  # a tenth
    window(limit, clock, 0.1, running=50, num_errors=10)
    assert limit.value == 50 * 0.7


def test_an_environment_that_always_fails_a_fifth_is_not_held_down():
    clock = Clock()
    limit = AdaptiveLimit(clock=clock)
    values = []
    for _ in range(100):
        window(limit, clock, 0.1, running=math.ceil(min(limit.value, 64)), num_errors=4)
        values.append(limit.value)
    assert min(values) < 64  # at first it looked like too much
    assert values[-1] > 64


def test_it_stays_between_one_and_its_bound():
    clock = Clock()
    limit = AdaptiveLimit(4, clock)
    for _ in range(10):
        window(limit, clock, 0.1, running=4)
    assert limit.value == 4
    for _ in range(5):
        window(limit, clock, 0.1, running=1, num_errors=20)
    assert limit.value == 1


def test_a_few_long_steps_mean_nothing():
    clock = Clock()
    limit = AdaptiveLimit(clock=clock)
    rng = np.random.default_rng(0)
    for _ in range(2000):
        clock.now += 0.05
        limit.record("step", 60.0 if rng.random() < 0.2 else 0.1, is_error=False, num_running=500)
    assert math.isinf(limit.value)


def test_quick_calls_are_not_compared():
    clock = Clock()
    limit = AdaptiveLimit(clock=clock)
    for seconds in (1e-5, 0.04, 1e-5, 0.04):
        window(limit, clock, seconds, running=5000)
    assert math.isinf(limit.value)


@pytest.mark.parametrize(("lag_s", "is_cut"), [(0.1, True), (0.3, False)])
def test_what_the_loop_adds_is_not_the_environments(lag_s, is_cut):
    """Calls of 0.1 s take 1 s: with rounds of 0.3 s up to 1.2 s are the loop's, with rounds of 0.1 s up to 0.4 s."""
    clock = Clock()
    limit = AdaptiveLimit(clock=clock)
    for seconds in (0.1, 1.0):
        limit.note_lag(lag_s)
        window(limit, clock, seconds, running=5000)
    assert math.isfinite(limit.value) is is_cut


def test_kinds_of_calls_are_not_compared_with_each_other():
    clock = Clock()
    limit = AdaptiveLimit(clock=clock)
    for method, seconds in (("step", 0.01), ("make", 5.0), ("step", 0.01), ("make", 5.0)):
        for _ in range(40):
            clock.now += 0.2
            limit.record(method, seconds, is_error=False, num_running=500)
    assert math.isinf(limit.value)


def test_it_finds_what_a_service_can_bear():
    """A service with 16 places, inside which callers queue: of 200 that want in, about twice 16 are let in."""
    clock = Clock()
    limit = AdaptiveLimit(clock=clock)
    values = []
    for number in range(300):
        running = 10 if number < 5 else math.floor(min(200, limit.value))  # first it is lightly used
        window(limit, clock, 0.1 * max(1.0, running / 16), running=running)
        values.append(limit.value)
    assert all(16 <= value <= 48 for value in values[20:])
