"""Rewards and states of single turns, taken from trajectories."""

from dataclasses import replace

import numpy as np
import pytest

from turngym.envs.task import Task
from turngym.errors import TrajectoryError
from turngym.executors.episodes.trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd
from turngym.executors.rollouts.buffer import Group
from turngym.learner.steps.turns import turn_rewards, turn_sharing, turn_states


def says(role, content, **more):
    return {"role": role, "content": content, **more}


def trajectory(rewards, messages=(), task="t", failure=None):
    return Trajectory(
        task=Task(task),
        attempt=0,
        sequences=(),
        messages=tuple(messages),
        rewards_per_turn=np.array(rewards, np.float64),
        turn_ends=(TurnEnd.STOP,) * len(rewards),
        end_reason=EndReason.FAILED if failure else EndReason.TERMINATED,
        failure=failure,
    )


def played(*observations, task="t", answers="abcdef"):
    """One user message before each completion; None says nothing."""
    messages = []
    for observation, answer in zip(observations, answers, strict=False):
        messages += [] if observation is None else [says("user", observation)]
        messages += [says("assistant", answer)]
    return trajectory([0.0] * len(observations), messages, task)


FAILED = trajectory([1.0, 1.0, 1.0, 1.0], failure=Failure(FailureKind.ENV, "broke", 4))


def test_what_shaping_changed_goes_to_the_last_turn():
    """3 clipped to 2 takes 1 from the last turn; a failed attempt has no row, and does not make the table longer."""
    rewards = turn_rewards([trajectory([1, 0, 2]), trajectory([4]), FAILED], [2.0, 4.0, np.nan])
    assert rewards.tolist() == [[1, 0, 1], [4, 0, 0], [0, 0, 0]]


def test_rewards_that_nothing_changed_stay_to_the_last_bit():
    own = [0.1, 0.2, 0.3]
    assert turn_rewards([trajectory(own)], [sum(own)]).tolist()[0] == pytest.approx(own, abs=1e-16)
    assert turn_rewards([trajectory(own)], [trajectory(own).reward]).tolist() == [own]


def test_rows_sum_to_the_shaped_rewards():
    rng = np.random.default_rng(0)
    made = [trajectory(rng.normal(size=n)) for n in rng.integers(1, 6, 20)]
    shaped = rng.normal(size=20)
    assert turn_rewards(made, shaped).sum(axis=1) == pytest.approx(shaped, abs=1e-12)


def test_an_episode_without_turns_has_a_place_for_its_reward():
    assert turn_rewards([trajectory([])], [0.5]).tolist() == [[0.5]]
    assert turn_states([trajectory([])]).tolist() == [[-1]]


def test_no_trajectories_or_none_valid():
    assert turn_rewards([], []).shape == turn_states([]).shape == (0, 0)
    assert turn_rewards([FAILED], [np.nan]).shape == turn_states([FAILED]).shape == (1, 0)


def test_one_shaped_reward_per_trajectory_is_wanted():
    with pytest.raises(TrajectoryError, match=r"\(1\) wanted, got \(2,\)"):
        turn_rewards([trajectory([1])], [1.0, 2.0])


def test_equal_observations_at_one_task_are_equal_states_whatever_was_answered():
    states = turn_states([played("go", "left", "right"), played("go", "right", answers="xyz"), FAILED])
    assert states.tolist() == [[0, 1, 2], [0, 2, -1], [-1, -1, -1]]


def test_the_same_observation_at_another_task_is_another_state():
    assert turn_states([played("go"), played("go", task="u"), played("go")]).tolist() == [[0], [1], [0]]


def test_where_nothing_was_said_there_is_no_state():
    assert turn_states([played("go", None, "left"), played(None, "left")]).tolist() == [[0, -1, 1], [-1, 1, -1]]


def test_all_messages_since_the_completion_count_and_ids_of_calls_do_not():
    def calls(identifier, *results):
        told = [says("tool", result, tool_call_id=identifier) for result in results]
        return trajectory([0, 0], [says("user", "go"), says("assistant", "a"), *told, says("assistant", "b")])

    states = turn_states([calls("1", "x", "y"), calls("2", "x", "y"), calls("1", "x"), calls("1", "y", "x")])
    assert states.tolist() == [[0, 1], [0, 1], [0, 2], [0, 3]]


def test_roles_and_parts_tell_states_apart():
    def one(message):
        return trajectory([0], [message, says("assistant", "a")])

    picture = [{"type": "image", "image": b"1"}]
    made = [
        says("user", "x"),
        says("tool", "x"),
        says("user", picture),
        says("user", [{"type": "image", "image": b"2"}]),
    ]
    states = turn_states([one(message) for message in [*made, says("user", [{"image": b"1", "type": "image"}])]])
    assert states.tolist() == [[0], [1], [2], [3], [2]]


def test_examples_that_open_the_episode_are_part_of_the_first_observation():
    def shown(answer):
        opening = [says("user", "1+1"), says("assistant", answer), says("user", "2+2")]
        return trajectory([0, 0], [*opening, says("assistant", "4"), says("user", "next"), says("assistant", "5")])

    assert turn_states([shown("2"), shown("2"), shown("3")]).tolist() == [[0, 1], [0, 1], [2, 1]]


def test_what_followed_the_last_completion_is_no_state():
    ended = trajectory([0], [says("user", "go"), says("assistant", "a"), says("user", "well done")])
    assert turn_states([ended]).tolist() == [[0]]


def test_missing_messages_are_named():
    with pytest.raises(TrajectoryError, match="task 't', attempt 0: 2 turns and only 1 assistant messages"):
        turn_states([trajectory([0, 0], [says("user", "go"), says("assistant", "a")])])


def family(*branches, num_turns=3, task="t"):
    """A group whose attempts branched off others."""
    made = [trajectory([0.0] * num_turns, task=task) for _ in branches]
    numbered = (replace(t, attempt=a, branch_of=b) for a, (t, b) in enumerate(zip(made, branches, strict=True)))
    return Group(Task(task), tuple(numbered))


def test_how_many_attempts_have_a_turn_in_common():
    """Attempts 1 and 2 leave 0 after turns 1 and 0, 3 leaves 2 after turn 1; 4 is alone."""
    group = family(None, (0, 1), (0, 0), (2, 1), None)
    sharing = turn_sharing([group], np.ones(5, bool))
    assert sharing.tolist() == [[4, 2, 1], [4, 2, 1], [4, 2, 1], [4, 2, 1], [1, 1, 1]]


def test_only_valid_attempts_of_the_same_group_count():
    groups = [family(None, (0, 0)), family(None, (0, 2), task="other")]
    assert turn_sharing(groups, np.ones(4, bool)).tolist() == [[2, 1, 1]] * 2 + [[2, 2, 2]] * 2
    assert turn_sharing(groups, np.array([False, True, True, True])).tolist()[1] == [1, 1, 1]


def test_without_branches_nothing_is_shared():
    assert turn_sharing([family(None, None)], np.ones(2, bool)) is None


def test_only_the_first_prompt_in_common_is_no_turn():
    assert turn_sharing([family(None, (0, -1))], np.ones(2, bool)).tolist() == [[1, 1, 1]] * 2
