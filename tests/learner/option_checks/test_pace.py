"""What a run says of the options that pace its rollouts, before anything is loaded."""

import re
from pathlib import Path

import pytest

from turngym.config import TrainConfig, parse_train
from turngym.executors.rollouts.pacing import Pace
from turngym.learner.option_checks.pairs import check_pairs, complaints
from turngym.learner.run.from_settings import pace


def settings(words: str) -> TrainConfig:
    given = parse_train(words.split())
    check_pairs(given)
    return given


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("", (0, 0)),
        ("--train.async_enable", (1, 2)),  # as docs/async.md says
        ("--train.async_enable --train.async_queue_size 3", (3, 4)),
        ("--train.async_enable --train.async_queue_size 3 --train.max_staleness 3", (3, 3)),
    ],
)
def test_the_bound_follows_the_queue(words, wanted):
    assert pace(settings(words)) == Pace(128, *wanted)


def test_the_page_names_the_same_default():
    page = (Path(__file__).parents[3] / "docs" / "async.md").read_text()
    ((queue, bound),) = re.findall(r"\| (\d+), (\d+) \(default\) \|", page)
    assert pace(settings("--train.async_enable")) == Pace(128, int(queue), int(bound))


def test_old_tokens_without_a_correction_are_said_aloud():
    """R44: "off" is no silent choice; the denominator is then the policy that sampled, never one made up later."""
    words = "--train.async_enable --algo.advantage.is_correction_level off"
    (said,) = (line for line in complaints(settings(words)) if "is_correction_level" in line)
    assert said.startswith(
        "--train.async_enable with --algo.advantage.is_correction_level off: tokens of older weights"
    )
    assert "the ratio's denominator is the policy that sampled them" in said
    for other in ("--train.async_enable", "--algo.advantage.is_correction_level off"):
        assert not [line for line in complaints(settings(other)) if "is_correction_level" in line]
