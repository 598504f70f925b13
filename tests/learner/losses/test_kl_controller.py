"""The KL's coefficient follows its target and never turns negative."""

import math
import pickle

import pytest

from turngym.errors import ConfigError, LearnerError
from turngym.learner.losses.kl_controller import KlController, resumed_coef
from turngym.learner.options import KlOptions


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (0.1, 1.0),
        (0.11, 1 + 0.1 * 0.0128),
        (5.0, 1 + 0.2 * 0.0128),
        (0.0, 1 - 0.2 * 0.0128),
        (-1.0, 1 - 0.2 * 0.0128),
        (math.inf, 1 + 0.2 * 0.0128),
    ],
)
def test_by_hand(kl, factor):
    """128 attempts of a horizon of 10000 move the coefficient by 1.28 % of the clipped error."""
    assert KlController(0.01, target=0.1).updated(kl, 128).coef == pytest.approx(0.01 * factor)


def test_no_update_turns_it_negative():
    """1000 attempts at a horizon of 100 would give 1 - 0.2 * 10 = -1."""
    controller = KlController(0.01, target=0.1, horizon=100)
    for _ in range(50):
        before, controller = controller.coef, controller.updated(0.0, 1000)
        assert controller.coef == pytest.approx(0.8 * before)
    assert controller.coef > 0


def test_it_settles_where_the_kl_is_on_target():
    """A KL of 0.001 / coef is at its target of 0.1 for a coefficient of 0.01."""
    for start in (0.001, 0.1):
        controller = KlController(start, target=0.1, horizon=1000)
        for _ in range(400):
            controller = controller.updated(0.001 / controller.coef, 128)
        assert controller.coef == pytest.approx(0.01, rel=0.01)


def test_without_a_target_it_stays():
    controller = KlController(0.01)
    assert controller.updated(math.nan, 128) is controller
    assert pickle.loads(pickle.dumps(controller)) == controller


def test_bad_numbers_are_refused():
    for bad in ({"coef": -0.1}, {"coef": math.nan}, {"coef": 0.1, "target": 0.0}, {"coef": 0.1, "horizon": 0}):
        with pytest.raises(ConfigError):
            KlController(**bad)
    with pytest.raises(LearnerError, match="NaN"):
        KlController(0.01, target=0.1).updated(math.nan, 1)


def test_a_run_that_goes_on_keeps_what_has_adapted_and_heeds_a_new_coefficient():
    assert resumed_coef(KlOptions(init_coef=0.01, target=0.1), saved=0.04) == 0.04
    assert resumed_coef(KlOptions(init_coef=0.02), saved=0.01) == 0.02
    assert resumed_coef(KlOptions(init_coef=0.01, target=0.1), saved=0.0) == 0.01  # it had no KL before
    assert resumed_coef(KlOptions(init_coef=0.0), saved=0.04) == 0.0
