"""What an attempt is worth: each rule by hand, and that attempts do not touch each other."""

import numpy as np
import pytest

from turngym.agents.base import Completion, Sampling, StopReason
from turngym.agents.sequence import SequenceBuilder
from turngym.envs.options import RewardOptions
from turngym.envs.task import Task
from turngym.errors import ConfigError, TrajectoryError
from turngym.executors.episodes.trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd
from turngym.learner.rewards.shaping import Shaping, is_truncated, shape_rewards, shaping
from turngym.learner.steps.turns import turn_rewards


def attempt(
    *rewards: float,
    lengths: tuple[int, ...] = (),
    end: EndReason = EndReason.TERMINATED,
    last: TurnEnd = TurnEnd.STOP,
    failed: bool = False,
) -> Trajectory:
    """One turn per reward, of `lengths` sampled tokens (1 each), with three tokens of the environment after each."""
    builder = SequenceBuilder()
    builder.add_context([1, 2], -1)
    for turn, length in enumerate(lengths or [1] * len(rewards)):
        ids = np.full(length, 7, np.int32)
        completion = Completion(ids, np.full(length, -1, np.float32), np.zeros(length, np.int32), StopReason.STOP)
        builder.add_completion(completion, Sampling(100), turn)
        builder.add_context([3, 3, 3], turn)
    return Trajectory(
        task=Task("t"),
        attempt=0,
        sequences=(builder.build(),),
        messages=(),
        rewards_per_turn=np.array(rewards, np.float64),
        turn_ends=(TurnEnd.STOP,) * (len(rewards) - 1) + (last,),
        end_reason=EndReason.FAILED if failed else end,
        failure=Failure(FailureKind.ENV, "broke", 0) if failed else None,
    )


def how(
    mask_truncated: bool = False, has_env_reward: bool = True, limits: tuple[int, int] = (100, 1000), **options
) -> Shaping:
    made = RewardOptions(**options)
    return shaping(
        made,
        mask_truncated=mask_truncated,
        has_env_reward=has_env_reward,
        max_turn_tokens=limits[0],
        max_episode_tokens=limits[1],
    )


def test_without_options_the_reward_is_the_environments():
    shaped = shape_rewards([attempt(1.0, 2.0), attempt(0.0), attempt(5.0, failed=True)], how())
    assert shaped.rewards_A.tolist()[:2] == [3, 0]
    assert np.isnan(shaped.rewards_A[2])
    assert shaped.is_valid_A.tolist() == [True, True, False]
    assert shaped.metrics == {
        "attempts/truncated": 0,
        "attempts/masked_truncated": 0,
        "attempts/unscored": 0,
        "reward/env": 1.5,
        "reward/clipped": 0,
        "reward/penalty_overlong": 0,
        "reward/penalty_stop": 0,
    }


def test_sources_are_weighed_and_added():
    trajectories = [attempt(1.0, 2.0), attempt(4.0)]
    shaped = shape_rewards(trajectories, how(model_name_or_path="m", weights=(2.0, 0.5)), [8, -2])
    assert shaped.rewards_A.tolist() == [2 * 3 + 4, 2 * 4 - 1]
    # The model's part is the last turn's.
    assert turn_rewards(trajectories, shaped.rewards_A, 2.0).tolist() == [[2, 4 + 4], [8 - 1, 0]]
    assert shaped.metrics["reward/env"] == 3.5
    assert shaped.metrics["reward/model"] == 3


def test_by_default_both_sources_weigh_one_and_a_model_alone_is_all_there_is():
    assert shape_rewards([attempt(1.0)], how(model_name_or_path="m"), [3.0]).rewards_A.tolist() == [4]
    alone = how(model_name_or_path="m", has_env_reward=False)
    shaped = shape_rewards([attempt(1.0)], alone, [3.0])
    assert shaped.rewards_A.tolist() == [3]
    assert "reward/env" not in shaped.metrics


def test_an_attempt_without_a_finite_score_is_left_out_and_counted():
    trajectories = [attempt(1.0), attempt(1.0), attempt(1.0, failed=True), attempt(1.0)]
    shaped = shape_rewards(trajectories, how(model_name_or_path="m"), [0.0, np.nan, np.nan, np.inf])
    assert shaped.is_valid_A.tolist() == [True, False, False, False]
    assert shaped.rewards_A[0] == 1  # a score of 0 is a score
    assert shaped.metrics["attempts/unscored"] == 2


def test_the_weighed_sum_is_clipped_and_what_filters_see_is_not():
    trajectories = [attempt(4.0, 3.0), attempt(-9.0), attempt(1.0)]
    shaped = shape_rewards(trajectories, how(clip_range=(-5.0, 5.0)))
    assert shaped.rewards_A.tolist() == [5, -5, 1]
    assert shaped.raw_rewards_A.tolist() == [7, -9, 1]
    assert turn_rewards(trajectories, shaped.rewards_A).tolist() == [[4, 1], [-5, 0], [1, 0]]
    assert shaped.metrics["reward/clipped"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("lengths", "penalty"),
    [
        ((80,), 0.0),  # the buffer of 20 begins at 80
        ((81,), 0.05),
        ((90,), 0.5),
        ((100,), 1.0),
        ((30, 95, 10), 0.75),  # the longest completion counts
        ((60, 60, 60), 0.5),  # 180 of 190 in total: 10 of the last 20
        ((60, 60, 70), 1.0),
        ((60, 60, 100), 1.0),  # never more than the full penalty
        ((), 0.0),
    ],
)
def test_overlong_penalty_counts_sampled_tokens_to_the_nearer_limit(lengths, penalty):
    made = attempt(*([0.0] * max(1, len(lengths))), lengths=lengths)
    shaped = shape_rewards([made], how(limits=(100, 190), overlong_buffer_len=20, overlong_penalty_factor=2.0))
    assert shaped.rewards_A[0] == pytest.approx(-2 * penalty)
    assert shaped.metrics["reward/penalty_overlong"] == pytest.approx(2 * penalty)


def test_the_penalty_comes_after_clipping():
    made = attempt(-10.0, lengths=(100,))
    assert shape_rewards([made], how(overlong_buffer_len=20)).rewards_A.tolist() == [-11]


@pytest.mark.parametrize(
    ("reward", "coef", "expected"),
    [
        (2.0, 0.5, 1.0),
        (2.0, 0.0, 0.0),
        (2.0, 1.0, 2.0),
        (-1.0, 0.5, -1.0),  # scaling would raise it to -0.5
        (-1.0, 0.0, -1.0),
        (2.0, -0.5, -0.5),
        (0.0, -0.5, -0.5),
        (-1.0, -0.5, -1.0),  # setting would raise it
    ],
)
def test_stop_properly_punishes_what_was_cut_off_and_never_raises(reward, coef, expected):
    cut, whole = attempt(reward, last=TurnEnd.TURN_TOKENS), attempt(reward)
    shaped = shape_rewards([cut, whole], how(stop_properly_penalty_coef=coef))
    assert shaped.rewards_A.tolist() == [expected, reward]
    assert shaped.metrics["reward/penalty_stop"] == pytest.approx((reward - expected) / 2)
    assert shaped.metrics["attempts/truncated"] == 1


def test_stop_properly_scales_what_the_length_has_left():
    made = attempt(3.0, lengths=(100,), last=TurnEnd.TURN_TOKENS)
    shaped = shape_rewards([made], how(overlong_buffer_len=20, stop_properly_penalty_coef=0.5))
    assert shaped.rewards_A.tolist() == [(3 - 1) * 0.5]


@pytest.mark.parametrize(
    ("end", "last", "expected"),
    [
        (EndReason.TERMINATED, TurnEnd.STOP, False),
        (EndReason.TERMINATED, TurnEnd.TURN_TOKENS, True),  # the environment scored half an answer
        (EndReason.TERMINATED, TurnEnd.EPISODE_TOKENS, True),
        (EndReason.TERMINATED, TurnEnd.CONTEXT_TOKENS, True),
        (EndReason.TRUNCATED, TurnEnd.STOP, True),
        (EndReason.MAX_TURNS, TurnEnd.STOP, True),
        (EndReason.MAX_TOKENS, TurnEnd.STOP, True),
        (EndReason.MAX_SECONDS, TurnEnd.STOP, True),
        (EndReason.CONTEXT, TurnEnd.STOP, True),
    ],
)
def test_what_counts_as_truncated(end, last, expected):
    assert is_truncated(attempt(1.0, end=end, last=last)) is expected


def test_a_completion_cut_off_on_the_way_does_not_count():
    made = attempt(0.0, 1.0)
    object.__setattr__(made, "turn_ends", (TurnEnd.TURN_TOKENS, TurnEnd.STOP))
    assert not is_truncated(made)


def test_truncated_attempts_are_masked_where_that_is_wanted():
    trajectories = [attempt(1.0), attempt(9.0, end=EndReason.MAX_TURNS), attempt(2.0, failed=True)]
    assert shape_rewards(trajectories, how()).is_valid_A.tolist() == [True, True, False]
    shaped = shape_rewards(trajectories, how(mask_truncated=True))
    assert shaped.is_valid_A.tolist() == [True, False, False]
    assert shaped.metrics["attempts/masked_truncated"] == 1
    assert turn_rewards(trajectories, shaped.rewards_A).tolist() == [[1], [0], [0]]


def test_where_nothing_is_valid_no_mean_is_made_up():
    shaped = shape_rewards([attempt(2.0, failed=True)], how())
    assert not shaped.is_valid_A.any()
    assert not [name for name in shaped.metrics if name.startswith("reward/")]
    assert shape_rewards([], how()).rewards_A.tolist() == []


def random_step(rng: np.random.Generator, count: int) -> tuple[list[Trajectory], np.ndarray]:
    ends = [EndReason.TERMINATED, EndReason.MAX_TURNS, EndReason.CONTEXT]
    lasts = [TurnEnd.STOP, TurnEnd.TURN_TOKENS]
    trajectories = []
    for _ in range(count):
        turns = int(rng.integers(1, 4))
        trajectories.append(
            attempt(
                *rng.normal(0, 8, turns),
                lengths=tuple(rng.integers(1, 101, turns)),
                end=ends[rng.integers(3)],
                last=lasts[rng.integers(2)],
                failed=bool(rng.random() < 0.2),
            )
        )
    scores = rng.normal(size=count)
    scores[rng.random(count) < 0.2] = np.nan
    return trajectories, scores


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mask_truncated", [False, True])
def test_attempts_do_not_touch_each_other(seed, mask_truncated):
    rng = np.random.default_rng(seed)
    trajectories, scores = random_step(rng, 24)
    rules = how(
        mask_truncated,
        limits=(100, 150),
        model_name_or_path="m",
        weights=(0.5, 3.0),
        overlong_buffer_len=40.0,
        stop_properly_penalty_coef=0.25,
    )
    shaped = shape_rewards(trajectories, rules, scores)
    assert np.isfinite(shaped.rewards_A[shaped.is_valid_A]).all()
    assert np.isnan(shaped.rewards_A[~shaped.is_valid_A]).all()
    turns_AT = turn_rewards(trajectories, shaped.rewards_A, 0.5)
    assert turns_AT.sum(1) == pytest.approx(np.nan_to_num(shaped.rewards_A))

    order = rng.permutation(24)
    moved = shape_rewards([trajectories[place] for place in order], rules, scores[order])
    assert np.array_equal(moved.rewards_A, shaped.rewards_A[order], equal_nan=True)
    assert moved.metrics == pytest.approx(shaped.metrics)

    for place in range(24):
        alone = shape_rewards([trajectories[place]], rules, scores[[place]])
        assert np.array_equal(alone.rewards_A, shaped.rewards_A[[place]], equal_nan=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": (1.0, 2.0)}, r"--reward\.weights wants one weight .*\(the environment .*url\), got 2: 1\.0 2\.0"),
        ({"weights": (1.0,), "model_name_or_path": "m"}, r"url and --reward\.model_name_or_path\), got 1"),
        ({"weights": (np.nan,)}, r"--reward\.weights must be finite"),
        ({"weights": (0.0,)}, r"--reward\.weights must be finite and not all 0"),
        ({"has_env_reward": False}, "nothing gives a reward"),
        ({"clip_range": (1.0, 1.0)}, r"--reward\.clip_range wants a lower and a higher bound, got 1\.0 and 1\.0"),
        ({"clip_range": (np.nan, 1.0)}, r"--reward\.clip_range"),
        (
            {"overlong_buffer_len": 101},
            r"--reward\.overlong_buffer_len must lie between 0 and the limit of 100 sampled",
        ),
        ({"overlong_buffer_len": 51, "limits": (100, 50)}, "the limit of 50 sampled tokens"),
        ({"overlong_buffer_len": -1}, r"--reward\.overlong_buffer_len"),
        ({"overlong_penalty_factor": -1.0}, r"--reward\.overlong_penalty_factor must not be negative, got -1\.0"),
        ({"stop_properly_penalty_coef": 1.5}, r"--reward\.stop_properly_penalty_coef .*got 1\.5"),
        ({"stop_properly_penalty_coef": np.nan}, r"--reward\.stop_properly_penalty_coef"),
    ],
)
def test_numbers_out_of_range_are_the_users_mistake(changes, message):
    with pytest.raises(ConfigError, match=message):
        how(**changes)


def test_scores_must_be_there_exactly_where_they_are_weighed():
    with pytest.raises(TrajectoryError, match="no scores"):
        shape_rewards([attempt(1.0)], how(model_name_or_path="m"))
    with pytest.raises(TrajectoryError, match="its scores came"):
        shape_rewards([attempt(1.0)], how(), [1.0])
    with pytest.raises(TrajectoryError, match=r"for each of 1 attempts, got \(2,\)"):
        shape_rewards([attempt(1.0)], how(model_name_or_path="m"), [1.0, 2.0])
