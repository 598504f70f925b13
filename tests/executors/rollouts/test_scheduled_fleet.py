"""What a fleet says of its engines where a schedule is followed."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from turngym.executors.fleet.fleet_engine import EngineRef
from turngym.executors.rollouts.scheduled_fleet import ScheduledFleet

FIRST, SECOND, AGAIN = EngineRef(0, 0), EngineRef(1, 0), EngineRef(0, 1)


@pytest.mark.parametrize(
    ("started", "bare", "lives"),
    [
        ([FIRST, SECOND], [], True),
        ([AGAIN, SECOND], [AGAIN], True),  # one was started anew, and gets work with the next weights
        ([AGAIN], [AGAIN], False),  # nobody has the weights that the learner published last
        ([], [], False),
    ],
)
def test_an_engine_without_the_published_weights_samples_nothing_of_a_schedule(started, bare, lives):
    fleet = SimpleNamespace(started=started, bare=bare)
    assert ScheduledFleet(cast(Any, fleet)).lives is lives
