"""`reasoning_gym/*`."""

import itertools
import re

import pytest

from turngym import Task
from turngym.envs.builtin.reasoning_gym import ReasoningGym, split_of
from turngym.envs.checks import check_env
from turngym.envs.resolution import resolve
from turngym.envs.task import Split
from turngym.errors import ConfigError, EnvError, UnknownNameError

pytestmark = pytest.mark.slow  # importing reasoning_gym takes seconds

ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
SYSTEM = "Answer with the final result only."


def answered(env: ReasoningGym, task: Task, text: str):
    env.reset(options={"task": task})
    return env.step(text)


def test_the_demo_task_can_be_said_in_keyword_arguments() -> None:
    factory = resolve(
        "reasoning_gym/chain_sum", {**ONE_DIGIT, "system_prompt": SYSTEM, "answer_pattern": r"-?\d+", "exact": True}
    )
    task = factory.tasks("train", 42)[0]
    env = factory()
    observation, _ = env.reset(options={"task": task})
    assert observation == [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.prompt}]
    left, sign, right = re.search(r"(\d) ([+-]) (\d) =", task.prompt).groups()
    assert int(task.label) == (int(left) + int(right) if sign == "+" else int(left) - int(right))
    _, reward, terminated, truncated, info = env.step(f"{left} {sign} {right} = {task.label}.")
    assert (reward, terminated, truncated, info["score"], info["answer"]) == (1.0, True, False, 1.0, task.label)
    assert answered(env, task, f"{task.label} or 77")[1] == 0.0
    assert answered(env, task, "no number")[1] == 0.0
    assert answered(env, task, "")[1] == 0.0


def test_no_evaluation_question_is_ever_trained_on_in_a_small_family() -> None:
    factory = resolve("reasoning_gym/chain_sum", ONE_DIGIT)
    questions = {
        split: {task.prompt for seed in (0, 1) for task in itertools.islice(factory.tasks(split, seed), 1500)}
        for split in ("train", "eval")
    }
    assert not questions["train"] & questions["eval"]
    assert len(questions["train"] | questions["eval"]) == 200  # ten digits, two signs, ten digits
    assert 30 <= len(questions["eval"]) <= 70


def test_tasks_are_stable_unique_and_follow_the_seed() -> None:
    factory = resolve("reasoning_gym/chain_sum", ONE_DIGIT)
    ids = [task.id for task in factory.tasks("eval", 3)[:300]]
    assert len(set(ids)) == 300
    assert ids == [task.id for task in factory.tasks("eval", 3)[:300]]
    assert not set(ids) & {task.id for task in factory.tasks("eval", 4)[:300]}
    assert factory.tasks("train", 0)[99_999].id != factory.tasks("train", 0)[99_998].id


def test_a_family_too_small_to_hold_anything_out_says_so() -> None:
    factory = resolve("reasoning_gym/chain_sum", {**ONE_DIGIT, "min_terms": 1, "max_terms": 1})
    splits = {split_of(f"State the final answer to the following arithmetic problem: {n} =") for n in range(10)}
    assert splits == {"train", "eval"}  # ten questions are enough
    assert len({task.prompt for task in factory.tasks("eval", 0)[:50]}) < 10
    one = resolve("reasoning_gym/count_bits", {"min_n": 5, "max_n": 5})
    question = one().reset(seed=0)[0]
    other: Split = "eval" if split_of(question) == "train" else "train"
    assert one.tasks(split_of(question), 0)[0].prompt == question
    with pytest.raises(ConfigError, match="so few different questions that none could be found"):
        _ = one.tasks(other, 0)[0]


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("spell_backward", "  {}\n", "the answer is {}"),
        ("chain_sum", "I think 12, no, {}", "{} or 1234567"),
        ("word_sorting", "{}", "x"),
        ("gcd", "gcd(2,3) = {}", "none"),
    ],
)
def test_how_the_answer_is_found_by_default(name: str, right: str, wrong: str) -> None:
    factory = resolve(f"reasoning_gym/{name}", {"exact": True})
    env, task = factory(), factory.tasks("train", 0)[0]
    assert answered(env, task, right.format(task.label))[1] == 1.0
    assert answered(env, task, wrong.format(task.label))[1] == 0.0


def test_the_pattern_takes_group_one_of_the_last_match() -> None:
    factory = resolve("reasoning_gym/gcd", {"answer_pattern": r"<a>(.*?)</a>"})
    env, task = factory(), factory.tasks("train", 0)[0]
    info = answered(env, task, f"<a>7</a> <a>{task.label}</a> 5")[4]
    assert (info["answer"], info["score"]) == (task.label, 1.0)
    assert answered(env, task, task.label)[4]["answer"] is None


def test_partial_scores_pass_unless_exact_is_asked_for() -> None:
    for exact, reward in ((False, 0.01), (True, 0.0)):
        factory = resolve("reasoning_gym/power_function", {"exact": exact, "answer_pattern": "(?s).+"})
        assert answered(factory(), factory.tasks("train", 0)[0], "nonsense")[1] == reward


def test_a_scorer_that_chokes_on_an_answer_calls_it_wrong_if_it_accepts_the_right_one() -> None:
    factory = resolve("reasoning_gym/prime_factorization", {})
    env, task = factory(), factory.tasks("train", 0)[0]
    _, reward, _, _, info = answered(env, task, "a\nb \u00d7 c")
    assert (reward, info["extra_logs"]) == (0.0, {"scorer_crashed": 1.0})
    assert answered(env, task, task.label)[1] == 1.0


def test_a_scorer_that_is_itself_broken_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    factory = resolve("reasoning_gym/gcd", {"max_numbers": 3})
    env, task = factory(), factory.tasks("train", 0)[0]

    def broken(answer, entry):
        if answer != task.label:
            raise ZeroDivisionError("scorer")
        return 0.0

    monkeypatch.setattr(env._entries.dataset, "score_answer", broken)
    with pytest.raises(EnvError, match="cannot score '3': ZeroDivisionError: scorer"):
        answered(env, task, "3")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_digit": 1}, "takes no argument 'max_digit'. Did you mean 'max_digits'"),
        ({"sytem_prompt": "x"}, "Did you mean 'system_prompt'"),
        ({"max_digits": "two"}, r"max_digits wants int, got 'two'"),
        ({"seed": 3}, "takes no argument 'seed'"),
        ({"min_terms": 5, "max_terms": 2}, "refuses .*max_terms must be >= min_terms"),
        ({"answer_pattern": "("}, "is not a regular expression"),
    ],
)
def test_bad_arguments(kwargs: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("reasoning_gym/chain_sum", kwargs).tasks("train", 0)


def test_an_unknown_family_and_a_foreign_task() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'chain_sum'"):
        ReasoningGym("chainsum")
    with pytest.raises(EnvError, match="has no seed; reasoning_gym/gcd takes its own tasks only"):
        ReasoningGym("gcd").reset(options={"task": Task("t", prompt="p")})


@pytest.mark.parametrize("name", ["chain_sum", "gcd", "letter_counting", "gsm_symbolic", "list_functions"])
def test_families_pass_the_checks(name: str) -> None:
    assert check_env(resolve(f"reasoning_gym/{name}", {"system_prompt": SYSTEM})) == []


def test_every_family_asks_and_accepts_its_own_answer() -> None:
    from turngym.envs.builtin.reasoning_gym import COLLECTION

    failed = {}
    for name in COLLECTION.names():
        factory = resolve(f"reasoning_gym/{name}", {"answer_pattern": r"(?s).+"})
        task = factory.tasks("train", 0)[0]
        if task.label is not None and not answered(factory(), task, task.label)[1] >= 0.99:
            failed[name] = task.label
    assert failed == {}
