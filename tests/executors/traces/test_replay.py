"""Recorded completions against the environment as it is now."""

import pytest
import yaml

from turngym.executors.store.format import StoredTrajectory
from turngym.executors.store.store import TrajectoryStore
from turngym.executors.traces.options import ReplayOptions
from turngym.executors.traces.run_settings import environment

FIRST = "1/Guess/train/7/0"

CLASS = """
from turngym.envs.builtin.guess import Guess

class Mine(Guess):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if observation == "Right!":
            return "Well done!", 0.75, terminated, truncated, info
        return observation, reward, terminated, truncated, info
"""


def test_a_run_against_itself_is_equal(traces, run):
    code, out, err = traces("replay", run)
    assert (code, out, err) == (0, "5 of 5 episodes are equal\n", "")


def test_one_episode_against_itself(traces, run):
    assert traces("replay", run, FIRST)[:2] == (0, f"train {FIRST}: equal in all 2 turns, reward 1\n")
    failed = "2/Guess/train/8/0"
    assert traces("replay", run, failed)[:2] == (0, f"train {failed}: equal in all 1 turns, failed as before, engine\n")


def test_other_arguments_of_the_environment(traces, run):
    code, out, _ = traces("replay", run, FIRST, "--agent_args.high", 10)
    assert code == 1
    name, recorded, now = out.splitlines()
    assert name == f"train {FIRST}: differs first before the first turn: observation"
    assert recorded.startswith("  recorded  ...")
    assert "1 to 9. You have 3" in recorded
    assert "1 to 10. You have 3" in now


def test_changed_code_by_a_file(traces, run, tmp_path):
    (tmp_path / "mine.py").write_text(CLASS)
    agent = f"env:{tmp_path}/mine.py:Mine"
    arguments = ["--agent_args.high", 9, "--agent_args.max_guesses", 3, "--agent_args.partial", 0.5]
    code, out, _ = traces("replay", run, FIRST, "--agent", agent, *arguments)
    assert code == 1
    assert out.splitlines() == [
        f"train {FIRST}: differs first in turn 1: reward",
        "  recorded  1.0",
        "  now       0.75",
    ]
    code, out, _ = traces("replay", run, "--split", "train", "--agent", agent, *arguments)
    assert code == 1
    assert out.splitlines() == [
        "2 of 4 episodes are equal",
        "  2 differ first in: reward",
        f"{FIRST}: turn 1, reward: '1.0' -> '0.75'",
        "2/Guess/train/7/0: turn 0, reward: '1.0' -> '0.75'",
    ]


def test_the_arguments_of_a_run_are_not_those_of_another_environment(traces, run):
    code, out, _ = traces("replay", run, FIRST, "--agent", "env:Guess-v0")
    assert code == 1
    assert "1 to 20. You have 6" in out


def test_an_episode_that_now_takes_longer(traces, run):
    code, out, _ = traces("replay", run, "1/Guess/train/7/1", "--agent_args.max_guesses", 4)
    assert code == 1
    assert "differs first before the first turn" in out


def test_limits_come_from_the_configuration(traces, run):
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["rollout"]["max_turns"] = 1
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    code, out, _ = traces("replay", run, FIRST)
    assert code == 1
    assert "differs first in turn 0: end" in out
    assert "now       max_turns after 1 turns" in out


def test_without_a_configuration_everything_must_be_said(traces, run, tiny_model):
    (run / "config.yaml").unlink()
    code, _, err = traces("replay", run)
    assert (code, err.count("\n")) == (2, 1)
    assert "give --agent env:NAME" in err
    arguments = ["--agent_args.high", 9, "--agent_args.max_guesses", 3, "--agent_args.partial", 0.5]
    code, _, err = traces("replay", run, "--agent", "env:Guess", *arguments)
    assert code == 2
    assert "--actor.model_name_or_path FOLDER" in err
    model = ["--actor.model_name_or_path", tiny_model]
    code, _, err = traces("replay", run, FIRST, "--agent", "env:Guess", *arguments, *model)
    assert (code, err.count("\n")) == (0, 1)
    assert "limits are the defaults" in err


def test_a_task_that_json_has_no_form_for_is_told(traces, run):
    store = TrajectoryStore(run / "trajectories" / "train")
    (first, *_) = store.read()
    store.copy(3, [StoredTrajectory(3, first.trajectory, first.env, inexact=("label", "data"))])
    _, out, err = traces("replay", run, "--step", 3)
    assert out == "1 of 1 episodes are equal\n"
    assert "3/Guess/train/7/0: its task's label and data held what JSON has no form for" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--agent env:Gues", "Did you mean"),
        ("--agent Guess", "--agent 'Guess': wanted env:NAME"),
        ("--agent_args.hihg 3", "hihg"),
        ("--actor.model_name_or_path /nowhere", "cannot load the tokenizer of '/nowhere'"),
        ("7/x/0", "nothing of step 7 is kept"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(traces, run, words, message):
    code, out, err = traces("replay", run, *words.split())
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_configuration_that_is_none_is_refused(traces, run):
    for content, message in (("a: [", "is not YAML"), ("- 1", "holds a list; wanted a mapping")):
        (run / "config.yaml").write_text(content)
        code, _, err = traces("replay", run)
        assert code == 2
        assert message in err


def test_an_environment_that_took_the_reward_function_takes_it_again(tmp_path):
    (tmp_path / "tools.py").write_text("def add(a: int, b: int) -> int:\n    return a + b\n")
    (tmp_path / "reward.py").write_text("def reward_func(queries, prompts, labels):\n    return [1.0] * len(queries)\n")
    tree = {
        "agent": "env:ToolEnv",
        "agent_args": {"tools": f"{tmp_path / 'tools.py'}:add"},
        "reward": {"remote_url": str(tmp_path / "reward.py")},
    }
    again = environment(tree, ReplayOptions())
    assert again.kwargs["remote_url"] == str(tmp_path / "reward.py")
