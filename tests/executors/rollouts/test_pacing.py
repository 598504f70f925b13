"""How many groups may be begun, and which are worth waiting for; the numbers are worked out by hand."""

import pytest

from turngym.errors import ConfigError
from turngym.executors.rollouts.pacing import Pace


@pytest.mark.parametrize(
    ("ahead", "num_open", "batches_left", "is_learning", "room"),
    [
        (0, 0, 9, False, 4),  # in step: the batch that is waited for
        (0, 3, 9, False, 1),
        (0, 0, 9, True, 0),  # and nothing while the learner works
        (2, 0, 9, False, 12),
        (2, 5, 9, True, 3),
        (2, 20, 9, True, 0),  # after a restart with a smaller queue
        (2, 0, 2, False, 8),  # two batches before the end
        (2, 0, 1, True, 4),
        (2, 0, 0, True, 0),
    ],
)
def test_room_is_what_the_batches_ahead_hold(ahead, num_open, batches_left, is_learning, room):
    pace = Pace(4, batches_ahead=ahead, max_staleness=2)
    assert pace.room(num_open, batches_left, is_learning=is_learning) == room


def test_oversampling_adds_to_the_last_batch_only():
    pace = Pace(4, batches_ahead=1, max_staleness=1, generate_groups=6)
    assert pace.oversamples
    assert pace.room(0, 9, is_learning=False) == 4 + 6
    assert pace.room(0, 9, is_learning=True) == 6
    assert not Pace(4, generate_groups=4).oversamples


@pytest.mark.parametrize(
    ("ready", "running", "version", "waits"),
    [
        ([], [], 3, False),
        ([], [3], 3, True),  # its last batch is this one
        ([], [4], 3, False),  # the next one has room for it
        ([], [4, 4], 3, False),
        ([], [4, 4, 4], 3, True),  # and holds two
        ([4], [4, 4], 3, True),  # a finished one takes room too, whoever is first
        ([4, 4, 4], [5], 3, False),  # only finished ones are too many: waiting for the running one saves none
        ([4, 4], [5, 5], 3, False),  # two batches until version 5
        ([4, 4], [5, 5, 5], 3, True),
    ],
)
def test_a_batch_waits_only_where_a_running_group_would_expire(ready, running, version, waits):
    assert Pace(2, batches_ahead=2, max_staleness=2).must_wait(ready, running, version) is waits


def test_with_oversampling_some_expire_by_design():
    assert not Pace(2, max_staleness=0, generate_groups=3).must_wait([], [0], 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"batch_groups": 0}, "at least 1 group, got 0"),
        ({"batches_ahead": -1}, "must not be negative, got -1 and 0"),
        ({"batches_ahead": 2, "max_staleness": 1}, "2 batches ahead .* max_staleness is 1"),
        ({"generate_groups": 3}, "3 groups in flight cannot fill a batch of 4"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        Pace(**({"batch_groups": 4} | words))
