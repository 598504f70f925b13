"""Numbers that an option cannot have are refused by its name."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from turngym.config import TrainConfig, option_names, parse_train
from turngym.errors import ConfigError
from turngym.learner.option_checks.ranges import RANGES, changed_options, check_ranges, option_value

MAY_BE_INFINITE = {"reward.clip_range", "algo.dynamic_filtering_range", "algo.advantage.is_correction_threshold"}


def with_option(options: Any, name: str, value: Any) -> Any:
    first, _, rest = name.partition(".")
    return replace(options, **{first: with_option(getattr(options, first), rest, value) if rest else value})


def is_numeric(options: Any, name: str) -> bool:
    *groups, last = name.split(".")
    for group in groups:
        options = getattr(options, group)
    kind = str(next(f.type for f in fields(options) if f.name == last))
    return ("int" in kind or "float" in kind) and "Literal" not in kind


def test_every_numeric_option_has_a_range():
    config = TrainConfig()
    numeric = {name for name in option_names(config) if is_numeric(config, name)}
    assert numeric - MAY_BE_INFINITE == set(RANGES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name, limits in sorted(RANGES.items())
        for value in (float("nan"), float("inf"), -2.0)
        if not (value == -2 and limits.holds(value))
    ],
)
def test_what_no_option_can_be(name, value):
    is_several = isinstance(option_value(TrainConfig(), name), tuple) or name == "actor.eps_clip_low_high"
    fine = next(number for number in (0.5, 1, 2) if RANGES[name].holds(number))
    with pytest.raises(ConfigError, match=rf"^--{name} must .*, got {value}$"):
        check_ranges(with_option(TrainConfig(), name, (fine, value) if is_several else value))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--actor.adam.betas 0.9 1", "--actor.adam.betas must lie between 0 and 1, and be less than 1, got 1.0"),
        ("--critic.min_lr_ratio 1.5", "--critic.min_lr_ratio must lie between 0 and 1, got 1.5"),
        ("--actor.dual_clip 1", "--actor.dual_clip must be greater than 1, got 1.0"),
        ("--teacher.gpu_memory_utilization 0", "must lie between 0 and 1, and be more than 0, got 0.0"),
        ("--train.ema_beta 1", "--train.ema_beta must lie between 0 and 1, and be less than 1"),
        ("--ds.lora.alpha 0", "--ds.lora.alpha must be at least 1, got 0"),
        ("--train.max_steps -2", "--train.max_steps must be -1 .none. or more, got -2"),
    ],
)
def test_ranges(words, message):
    with pytest.raises(ConfigError, match=message):
        check_ranges(parse_train(words.split()))


def test_defaults_are_within():
    check_ranges(TrainConfig())


def test_what_was_changed():
    config = parse_train(["--critic.adam.lr", "1e-6", "--critic.optim", "muon", "--actor.adam.lr", "1e-6"])
    assert changed_options(config, "critic") == ["critic.optim", "critic.adam.lr"]  # 1e-6 is the actor's default only
    assert changed_options(config, "actor") == []
    assert is_dataclass(option_value(config, "critic.adam"))
