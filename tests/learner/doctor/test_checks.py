"""One sick run for each check but those of the mismatch, beside a healthy one on which all run and none speaks."""

from dataclasses import replace

import pytest

from turngym.executors.episodes.trajectory import EndReason, Failure, FailureKind, TurnEnd
from turngym.learner.doctor.diagnosis import diagnose
from turngym.learner.doctor.finding import CHECKS, Severity, Stage


def test_a_healthy_run_has_no_finding_though_every_check_runs(make_run):
    diagnosis = diagnose(make_run())
    assert diagnosis.findings == {}
    assert diagnosis.not_known == {}
    assert diagnosis.num_looked == len(list(CHECKS))


@pytest.mark.parametrize("steps", [2, 3, 7, 8, 200])
def test_a_healthy_run_of_any_length_has_none(make_run, steps):
    assert diagnose(make_run(steps=steps)).findings == {}


def test_a_run_of_one_step_is_looked_at(make_run):
    row = {"policy/entropy": 1.5, "value/explained_variance": 0.1}
    assert diagnose(make_run(row, steps=2)).findings == {}


def linear(first: float, last: float, steps: int = 26):
    return lambda i: first + (last - first) * i / (steps - 1)


def late(value: float, before: float, since: int = 13):
    return lambda i: value if i >= since else before


ZERO = {"reward/mean": 0.0, "reward/std": 0.0, "attempts/without_signal": 64.0}
# name of the check, what is changed, the stage, and a piece of the finding's text
SICK = [
    ("no_spread", {"attempts/without_signal": late(64.0, 24.0)}, Stage.ADVANTAGES, "the attempts at one task do not"),
    ("no_spread", {"attempts/without_signal": late(56.0, 24.0)}, Stage.ADVANTAGES, "88% of the attempts teach nothing"),
    ("lone_survivors", {"attempts/lone_survivors": 8.0}, Stage.ADVANTAGES, "12% of the valid attempts"),
    ("few_groups_kept", {"groups/kept": 1.0, "groups/without_spread": 15.0}, Stage.TASKS, "6% of the groups were kept"),
    ("masked_attempts", {"attempts/masked_truncated": 40.0}, Stage.ADVANTAGES, "62% of the attempts"),
    ("retried_attempts", {"attempts/retries": 32}, Stage.ENVIRONMENT, "0.50 retries per attempt"),
    (
        "cut_off_episodes",
        {"ends/terminated": 16, "ends/context": 48},
        Stage.ROLLOUT,
        "75% of the episodes since step 14",
    ),
    ("lengths", {"rollout/tokens": linear(1150, 12000)}, Stage.ROLLOUT, "grow without end"),
    ("lengths", {"rollout/tokens": 64.0}, Stage.ROLLOUT, "1 tokens per attempt at first"),
    ("no_gradient", {"policy/grad_norm": 0.0}, Stage.OPTIMISER, "gradient is zero"),
    ("gradient_spikes", {"policy/grad_norm": lambda i: 30.0 if i == 11 else 0.5}, Stage.OPTIMISER, "30 at step 12"),
    ("gradient_spikes", {"policy/grad_norm": lambda i: 0.1 * 1.3**i}, Stage.OPTIMISER, "norm explodes"),
    ("always_clipped", {"policy/grad_norm": 25.0}, Stage.OPTIMISER, "median norm 25, --actor.max_norm 1"),
    ("overflows", {"policy/overflows": 1.0, "policy/grad_norm": 0.5}, Stage.OPTIMISER, "21 of 21 steps after"),
    ("entropy", {"policy/entropy": linear(1.0, 5.0)}, Stage.OPTIMISER, "Entropy explodes"),
    ("far_from_reference", {"kl/reference": linear(0.0, 2.0)}, Stage.OPTIMISER, "runs away"),
    ("large_updates", {"policy/approx_kl": 0.4}, Stage.OPTIMISER, "approx_kl 0.4 on average"),
    ("large_updates", {"policy/clip_fraction": 0.5}, Stage.OPTIMISER, "50% of the tokens clipped"),
    ("learning_rate", {"policy/lr": 0.0}, Stage.OPTIMISER, "The learning rate is 0"),
    ("learning_rate", {"policy/lr": linear(1e-7, 4e-5)}, Stage.OPTIMISER, "warm-up is longer than the run"),
    ("not_finite", {"reward/std": lambda i: float("nan") if i in (3, 4) else 0.4}, Stage.OPTIMISER, "std in steps 4-5"),
    ("critic", {"value/explained_variance": -0.2}, Stage.ADVANTAGES, "explains nothing"),
    ("unread_answers", {"env/parsed": 0.1}, Stage.REWARD, "90% of the late attempts"),
    ("unread_answers", {"env/scorer_crashed": 0.3}, Stage.REWARD, "logs 'scorer_crashed'"),
    ("version_stands_still", {"version": 2}, Stage.WEIGHT_SYNC, "updates were taken in steps 2-26"),
    ("correction", {"is_weight/effective_size": 0.2}, Stage.OPTIMISER, "weighted tokens 0.20"),
    ("critic", {"value/explained_variance": None, "critic/explained_variance": -0.2}, Stage.ADVANTAGES, "nothing"),
    ("clipped_rewards", {"reward/clipped": 0.4}, Stage.REWARD, "40% of the rewards"),
    ("correction", {"is_weight/masked": 0.4}, Stage.OPTIMISER, "40% of the tokens left out"),
    ("correction", {"mismatch/outside_bounds": 0.3}, Stage.OPTIMISER, "30% of the ratios"),
]


@pytest.mark.parametrize(("name", "changes", "stage", "text"), SICK, ids=lambda v: v if isinstance(v, str) else "")
def test_each_disease_is_found_and_no_other(make_run, name, changes, stage, text):
    findings = diagnose(make_run(changes)).findings
    assert list(findings) == [name]
    assert findings[name].stage is stage
    assert text in " ".join([findings[name].title, *findings[name].evidence])
    assert findings[name].what_to_do


@pytest.mark.parametrize(
    ("changes", "rewards", "text"),
    [
        (ZERO, [0.0] * 8, "all score 0: too hard"),
        (ZERO | {"reward/mean": 1.0}, [1.0] * 8, "too easy, or solved"),
        (ZERO | {"reward/mean": 0.5}, [0.5, 0.0, 1.0, 0.5], "does not tell attempts apart"),
    ],
)
def test_equal_rewards_are_told_apart_by_their_height(make_run, make_episode, changes, rewards, text):
    train = {step: [make_episode(step, reward) for reward in rewards] for step in range(1, 27)}
    if text.startswith("too easy"):  # a task was failed once, else nobody knows which end of the scale 1 is
        train[1][0] = make_episode(1, 0.0)
    finding = diagnose(make_run(changes, train=train)).findings["no_spread"]
    assert text in finding.title
    assert finding.severity is Severity.PROBLEM


@pytest.mark.parametrize("estimator", ["gae", "on_policy_distill"])
def test_equal_rewards_are_fine_where_siblings_are_not_compared(make_run, estimator):
    changes = {"attempts/without_signal": 64.0, "attempts/lone_survivors": 8.0}
    assert diagnose(make_run(changes, {"algo.advantage.estimator": estimator})).findings == {}


def test_shares_are_of_all_attempts_also_where_most_were_filtered_out(make_run):
    filtered = {"attempts/failed": 2, "failures/env": 2, "ends/terminated": 62, "attempts/valid": 16.0}
    assert diagnose(make_run(filtered | {"attempts/without_signal": 4.0})).findings == {}
    without_ends = {"attempts/failed": 16, "attempts/valid": 48.0, "ends/terminated": None}
    assert "416 of 1664" in diagnose(make_run(without_ends)).findings["failed_attempts"].evidence[0]


def test_entropy_may_fall_as_long_as_attempts_differ(make_run):
    fallen = {"policy/entropy": lambda i: 1.5 * 0.8**i}
    assert "entropy" not in diagnose(make_run(fallen)).findings
    findings = diagnose(make_run(fallen | {"attempts/without_signal": late(48.0, 16.0)})).findings
    assert findings["entropy"].title == "Entropy has collapsed"


def test_answers_may_shrink_as_long_as_the_reward_rises(make_run):
    short = {"rollout/tokens": linear(1150, 70)}
    assert "lengths" not in diagnose(make_run(short)).findings
    assert "collapse" in diagnose(make_run(short | {"reward/mean": 0.3})).findings["lengths"].title


def test_warm_up_of_a_run_that_still_goes_on_is_no_finding(make_run):
    assert "learning_rate" not in diagnose(make_run({"policy/lr": linear(1e-7, 4e-5)}, is_complete=False)).findings


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        (FailureKind.GRADER, Stage.REWARD),
        (FailureKind.ENV, Stage.ENVIRONMENT),
        (FailureKind.ENGINE_DEAD, Stage.ENGINE),
        (FailureKind.PROMPT_TOO_LONG, Stage.TASKS),
    ],
)
def test_failures_are_named_by_kind_with_what_one_said(make_run, make_episode, kind, stage):
    broken = make_episode(3, end_reason=EndReason.FAILED, failure=Failure(kind, "no verdict: deadline of 5 s", 0))
    changes = {"attempts/failed": 16, "attempts/valid": 48.0, f"failures/{kind.value}": 16, "ends/terminated": 48}
    findings = diagnose(make_run(changes, train={4: [broken, make_episode(3)]})).findings
    assert list(findings) == ["failed_attempts"]
    finding = findings["failed_attempts"]
    assert (finding.stage, finding.severity) == (stage, Severity.PROBLEM)
    assert finding.evidence[0] == "416 of 1664 attempts failed; at worst 25% in one step"
    assert (
        f"{kind.value}: 416 times, such as 'no verdict: deadline of 5 s' (step 4, task 'sums/3'" in finding.evidence[1]
    )


def test_a_run_that_failures_stopped_before_its_first_step_says_why(make_run, make_episode):
    failure = Failure(FailureKind.REWARD, "KeyError: 'label'", 0)
    broken = [make_episode(i, end_reason=EndReason.FAILED, failure=failure) for i in range(8)]
    run = make_run(steps=0, train={1: broken}, held_out={}, is_complete=False)
    finding = diagnose(run).findings["failed_attempts"]
    assert finding.severity is Severity.PROBLEM
    assert "8 of 8 attempts failed" in finding.evidence[0]
    assert "KeyError" in finding.evidence[2]


def test_retries_name_what_failed(make_run, make_episode):
    earlier = (Failure(FailureKind.ENV_TIMEOUT, "no step within 60 s", 1),)
    train = {1: [make_episode(1, earlier_failures=earlier)]}
    finding = diagnose(make_run({"attempts/retries": 40}, train=train)).findings["retried_attempts"]
    assert finding.stage is Stage.ENVIRONMENT
    assert "no step within 60 s" in finding.evidence[1]


def test_cut_off_completions_are_seen_in_the_episodes(make_run, make_episode):
    train = {20: [make_episode(i, turn_ends=(TurnEnd.TURN_TOKENS,)) for i in range(3)] + [make_episode(4)]}
    finding = diagnose(make_run(train=train)).findings["cut_off_episodes"]
    assert (
        "75% of the completions since step 14 ended because --rollout.max_new_tokens was reached (24)"
        in finding.evidence
    )
    early = {2: train[20], 20: [make_episode(4)]}
    assert "cut_off_episodes" not in diagnose(make_run(train=early)).findings


def test_empty_answers_cannot_be_read_but_tool_calls_can(make_run, make_episode):
    empty = make_episode(1, 0.0, answer=" ")
    finding = diagnose(make_run(train={20: [empty]})).findings["unread_answers"]
    assert finding.severity is Severity.PROBLEM
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "search"}}]}
    assert "unread_answers" not in diagnose(make_run(train={20: [replace(empty, messages=(call,))]})).findings


def test_repeated_tasks_are_counted_by_prompt_and_by_pass(make_run, make_episode):
    train = {step: [make_episode(step, prompt=f"What is {step % 5}?")] for step in range(1, 27)}
    finding = diagnose(make_run(train=train)).findings["repeated_tasks"]
    assert finding.evidence[0] == "26 groups of attempts have 5 different prompts, in 1 passes"
    assert "repeated_tasks" not in diagnose(make_run(settings={"train.num_episodes": 6}, train=train)).findings


def test_tasks_without_a_prompt_of_their_own_go_by_their_id(make_run, make_episode):
    train = {step: [make_episode(step, prompt=None)] for step in range(1, 27)}
    assert "repeated_tasks" not in diagnose(make_run(train=train)).findings


def test_held_out_tasks_in_training_are_found(make_run, make_episode):
    findings = diagnose(make_run(train={1: [make_episode(1003)]})).findings
    assert "1 of 40 held-out prompts were trained on" in findings["held_out_tasks_seen"].evidence[0]


def test_episodes_of_nearly_nothing_but_context(make_run, make_episode):
    train = {1: [make_episode(1, num_context=994)]}
    assert (
        "6 of 1000 tokens in 1 episodes were sampled (0.6%)"
        in diagnose(make_run(train=train)).findings["few_actions"].evidence
    )


def test_rewards_beyond_the_clip_range(make_run, make_episode):
    train = {step: [make_episode(step, 50.0), make_episode(step, 2.0)] for step in range(1, 9)}
    finding = diagnose(make_run(train=train)).findings["clipped_rewards"]
    assert finding.evidence[0].startswith("50% of the rewards lie outside")


def test_reward_that_rises_in_training_only(make_run, make_held_out):
    held_out = {0: make_held_out(0.4), 26: make_held_out(0.42)}
    finding = diagnose(make_run(held_out=held_out)).findings["not_carried_over"]
    assert "held-out reward +0.02 from step 0 to step 26 (0.4 to 0.42) on 100 tasks" in finding.evidence[1]
    few = {0: make_held_out(0.4, 5), 26: make_held_out(0.4, 5)}  # five tasks say nothing
    assert "not_carried_over" not in diagnose(make_run(held_out=few)).findings


def test_held_out_reward_that_falls_from_its_best(make_run, make_held_out):
    held_out = {0: make_held_out(0.1), 13: make_held_out(0.8), 26: make_held_out(0.4)}
    finding = diagnose(make_run(held_out=held_out)).findings["held_out_fell"]
    assert finding.evidence == ("held-out reward 0.8 at step 13, 0.4 at step 26",)
    wobble = {0: make_held_out(0.1), 13: make_held_out(0.8), 26: make_held_out(0.75)}
    assert "held_out_fell" not in diagnose(make_run(held_out=wobble)).findings


def test_what_is_absent_is_not_known_and_never_zero(make_run):
    names = ["attempts/failed", "attempts/without_signal", "policy/grad_norm", "policy/lr", "policy/entropy", "version"]
    run = make_run(dict.fromkeys(names), train={}, held_out={})
    diagnosis = diagnose(run)
    assert diagnosis.findings == {}
    assert diagnosis.not_known["no_gradient"] == ("policy/grad_norm",)
    assert diagnosis.not_known["no_spread"] == ("attempts/without_signal",)
    assert diagnosis.not_known["failed_attempts"] == ("attempts/failed or training episodes",)


def test_findings_come_worst_first_and_then_by_stage(make_run):
    changes = {"policy/lr": 0.0, "is_weight/effective_size": 0.2, "attempts/lone_survivors": 8.0, "version": 2}
    findings = diagnose(make_run(changes | {"policy/grad_norm": 0.0})).findings
    assert list(findings) == ["learning_rate", "no_gradient", "lone_survivors", "correction"]
