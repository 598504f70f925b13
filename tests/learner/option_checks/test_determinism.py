"""Options under full determinism: what goes by the clock is refused, as are replays that cannot be."""

from pathlib import Path

import pytest

from turngym.config import parse_train
from turngym.envs.builtin.guess import Guess
from turngym.envs.factory import EnvFactory
from turngym.errors import ConfigError
from turngym.executors.rollouts.bursts import Bursts
from turngym.executors.rollouts.following import FollowingRollouts
from turngym.executors.rollouts.schedule import RolloutSchedule, StepRecord
from turngym.learner.option_checks.determinism import check_sides
from turngym.learner.option_checks.pairs import check_pairs
from turngym.learner.rollout_choice import make_rollouts, schedule_to_follow

REPLAY = "--train.replay_schedule s.jsonl"
BOTH = "--train.full_determinism_enable --train.async_enable"
GUESS = "--agent env:Guess"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--train.full_determinism_enable --rollout.straggler_timeout_s 5", r"straggler_timeout_s leaves behind"),
        (
            "--train.full_determinism_enable --rollout.batch_size 4 --rollout.vllm_generate_batch_size 5",
            r"vllm_generate_batch_size 5: a step takes what finishes first",
        ),
        (f"{REPLAY} --train.full_determinism_enable", r"replay_schedule is for rollouts that go on .*async_enable"),
        (f"{REPLAY} --train.async_enable", r"replay_schedule wants the same seeds: add --train.full_determinism"),
        (f"{REPLAY} {BOTH} --train.partial_rollout_enable", r"leave --train.partial_rollout_enable out"),
        (f"{REPLAY} {BOTH} --rollout.branch_at 0", r"leave --rollout.branch_at out"),
        (f"{REPLAY} {BOTH} --ckpt.load_enable", r"begins at the first step, and --ckpt.load_enable"),
    ],
)
def test_what_cannot_be_repeated(words, message):
    with pytest.raises(ConfigError, match=message):
        check_pairs(parse_train(words.split()))


@pytest.mark.parametrize(
    "words",
    [
        f"{REPLAY} {BOTH}",
        "--train.full_determinism_enable --rollout.batch_size 4 --rollout.vllm_generate_batch_size 4",
        f"{BOTH} --rollout.straggler_timeout_s 5",
    ],
)
def test_what_can(words):
    check_pairs(parse_train(words.split()))


@pytest.mark.parametrize(
    ("words", "in_bursts"), [("", False), ("--train.full_determinism_enable", True), (BOTH, False)]
)
def test_only_synchronous_runs_under_full_determinism_have_bursts(words, in_bursts):
    rollouts = make_rollouts(parse_train(f"{GUESS} {words}".split()), None, object(), object(), lambda: False)
    assert isinstance(rollouts._engines, Bursts) == in_bursts


def test_a_schedule_is_followed_and_its_file_is_looked_at_first(tmp_path: Path):
    settings = parse_train(f"{GUESS} --train.replay_schedule {tmp_path / 's'} {BOTH}".split())
    with pytest.raises(ConfigError, match="cannot be read"):
        schedule_to_follow(settings)
    (tmp_path / "s").write_text('{"step": 1, "version": 0, "takes": []}\n')
    schedule = schedule_to_follow(settings)
    assert schedule == RolloutSchedule((StepRecord(1, 0, ()),))
    assert isinstance(make_rollouts(settings, schedule, object(), object(), lambda: False), FollowingRollouts)


def test_sides_of_a_game_cannot_be_sampled_in_step():
    class Game(Guess):
        @classmethod
        def num_sides(cls, kwargs):
            return kwargs.get("low", 2)

    settings = parse_train(f"{GUESS} --train.full_determinism_enable".split())
    check_sides(settings, EnvFactory("Guess", Guess))
    check_sides(settings, EnvFactory("Game", Game, {"low": 1}))
    check_sides(parse_train(GUESS.split()), EnvFactory("Game", Game))
    for env in (EnvFactory("Game", Game), EnvFactory("Mixture", Guess, members={"game": EnvFactory("Game", Game)})):
        with pytest.raises(ConfigError, match=r"sides of a game .* move one after the other"):
            check_sides(settings, env)
