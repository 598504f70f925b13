from turngym.executors.pools.breaker import BURST, MOST_PROBES, Breaker, BreakerState, Entry

DOWN = OSError("the service is down")


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def burst(breaker, number=BURST):
    for _ in range(number):
        breaker.record(DOWN, is_probe=False)


def test_it_opens_half_opens_and_closes():
    clock = Clock()
    breaker = Breaker(clock)
    burst(breaker, BURST - 1)
    assert breaker.enter() is Entry.PASS
    burst(breaker, 1)
    assert breaker.state is BreakerState.OPEN
    assert breaker.enter() is Entry.WAIT
    breaker.record(None, is_probe=False)  # a late one, begun before
    assert breaker.enter() is Entry.WAIT
    clock.now = 1.0
    assert breaker.enter() is Entry.PROBE
    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.enter() is Entry.WAIT  # one at a time
    breaker.record(DOWN, is_probe=True)
    clock.now = 2.9
    assert breaker.enter() is Entry.WAIT  # the second pause is two seconds
    clock.now = 3.0
    assert breaker.enter() is Entry.PROBE
    breaker.record(None, is_probe=True)
    assert breaker.state is BreakerState.CLOSED
    assert breaker.enter() is Entry.PASS
    assert breaker.num_opened == 1
    burst(breaker, BURST - 1)
    assert breaker.state is BreakerState.CLOSED  # what was before is forgotten


def test_failures_among_successes_do_not_open_it():
    breaker = Breaker(Clock())
    for number in range(400):
        breaker.record(DOWN if number % 4 else None, is_probe=False)  # three of four fail
    assert breaker.state is BreakerState.CLOSED


def test_a_probe_that_told_nothing_is_replaced():
    clock = Clock()
    breaker = Breaker(clock)
    burst(breaker)
    clock.now = 1.0
    assert breaker.enter() is Entry.PROBE
    breaker.cancel_probe()
    assert breaker.enter() is Entry.PROBE


def test_after_many_failed_probes_nobody_needs_to_wait():
    clock = Clock()
    breaker = Breaker(clock)
    burst(breaker)
    pauses = []
    for _ in range(MOST_PROBES):
        assert not breaker.is_hopeless
        pauses.append(breaker.pause_s)
        clock.now += breaker.pause_s
        assert breaker.enter() is Entry.PROBE
        breaker.record(DOWN, is_probe=True)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert breaker.enter() is Entry.HOPELESS
    clock.now += 30
    assert breaker.enter() is Entry.PROBE  # it may still come back
    assert breaker.enter() is Entry.HOPELESS
    breaker.record(None, is_probe=True)
    assert breaker.enter() is Entry.PASS
    assert "the service is down" in breaker.last_error
