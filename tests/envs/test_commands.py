"""`turngym envs list | check | play`."""

import io
from pathlib import Path

import pytest
from gymnasium.envs.registration import registry

from turngym import register
from turngym.envs.commands import main


def test_list_shows_ids_with_a_line_each_and_the_collections(capsys: pytest.CaptureFixture) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert "turngym/Guess-v0 " in out
    assert "Find a secret whole number" in out
    assert "reasoning_gym/... (105 environments)" in out
    assert " chain_sum" in out


def test_list_goes_on_past_an_environment_that_cannot_be_loaded(capsys: pytest.CaptureFixture) -> None:
    register("Broken", "no_such_module:Broken")
    try:
        assert main(["list"]) == 0
    finally:
        del registry["turngym/Broken-v0"]
    out = capsys.readouterr().out
    assert "cannot be loaded: no module named 'no_such_module'" in out
    assert "turngym/Guess-v0" in out


@pytest.mark.parametrize("spec", ["Guess", "CopyText"])
def test_check_passes_built_ins(spec: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["check", spec]) == 0
    assert capsys.readouterr().out == f"{spec}: 0 errors, 0 warnings\n"


def test_check_prints_each_problem_and_how_to_mend_it(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "bad.py").write_text(
        "from turngym import Env\nclass Bad(Env):\n    def reset(self, *, seed=None, options=None): return 3, {}\n"
        "    def step(self, action): return '', 0.0, True, False, {}\n"
    )
    assert main(["check", f"{tmp_path}/bad.py:Bad"]) == 1
    out = capsys.readouterr().out
    assert "error [observation] reset returned an observation of type int" in out
    assert "mend: return text, chat messages, or RawText" in out
    assert "1 errors, 0 warnings" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["check", "Gues"], "Did you mean 'Guess'"),
        (["check", "Guess", "--agent_args.low", "x"], "low wants int"),
        (["check", "Guess", "--agent_args.low=[1"], "read as YAML"),
        (["check", "Guess", "--agent_args.low"], "wants a value"),
        (["check", "--agent_args.low", "5", "Guess", "--agent_args.high=5"], "Guess wants low < high, got 5 and 5"),
        (["play", "Guess", "--task", "-1"], "there is no task -1"),
        (["check", "reasoning_gym/chain_sum", "--agent_args.max_digit", "1"], "Did you mean 'max_digits'"),
    ],
)
def test_the_users_mistakes_are_exit_code_2(argv: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    assert main(argv) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_command_is_exit_code_2(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["chek"])
    assert caught.value.code == 2
    assert "chek" in capsys.readouterr().err


def test_play_reads_piped_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n2\n"))
    assert main(["play", "Guess", "--agent_args.high", "2", "--seed", "3", "--task", "5"]) == 0
    out = capsys.readouterr().out
    assert "from 1 to 2" in out
    assert "terminated, total reward 1" in out


def test_prompt_is_checked_and_played_with_a_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "data.jsonl").write_text('{"input": "1+1=", "answer": "2"}\n{"input": "1+2=", "answer": "3"}\n')
    (tmp_path / "reward.py").write_text(
        "def reward_func(queries, prompts, labels): return [float(queries[0].endswith(labels[0]))]"
    )
    options = ["Prompt", "--agent_args.remote_url", str(tmp_path / "reward.py")]
    assert main(["check", *options]) == 2
    assert "name a dataset with --data.prompt_dataset" in capsys.readouterr().err
    options += ["--dataset", str(tmp_path / "data.jsonl"), "--label_key", "answer"]
    main(["check", *options])
    assert "Prompt: 0 errors" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("2\n"))
    assert main(["play", *options]) == 0
    assert "total reward 1" in capsys.readouterr().out
