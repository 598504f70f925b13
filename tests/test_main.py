"""The command line: quick, torch-free help; exit code 2 for the user's mistakes."""

import subprocess
import sys

import pytest

import turngym
from turngym.__main__ import COMMANDS, main
from turngym.errors import LearnerError

HEAVY = ("torch", "vllm", "ray", "deepspeed", "transformers")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "turngym", *words], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [[], ["train"], ["envs"], ["traces"], ["serve-rm"], ["merge-lora"], ["doctor"]],
    ids=lambda words: " ".join(words),
)
def test_help_imports_nothing_heavy(words):
    program = (
        "import sys\n"
        "from turngym.__main__ import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        f"print('HEAVY', [name for name in {HEAVY} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words, "--help"], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "HEAVY []", done.stderr
    assert "usage" in done.stdout.lower()


@pytest.mark.slow
def test_train_help_shows_openrlhf_names():
    out = run("train", "--help").stdout
    for option in ("--actor.model_name_or_path", "--rollout.n_samples_per_prompt", "--algo.advantage.estimator"):
        assert option in out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"turngym {turngym.__version__}\n"


def test_unknown_command_names_the_nearest(capsys):
    assert main(["trian"]) == 2
    assert "Did you mean 'train'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --rollout.batchsize 3", "Did you mean '--rollout.batch_size'"),
        ("train --agent env:Gues --actor.model_name_or_path .", "config.json"),
        ("train", "--actor.model_name_or_path is missing"),
        ("train --actor.model_name_or_path /nowhere/model --agent env:Guess", "no model folder '/nowhere/model'"),
        ("train --agent env:Guess --rollout.n_samples_per_prompt 1 --train.batch_size 128", "at least 2, got 1"),
        ("train --agent env:Guess --rollout.batch_size 5 --rollout.n_samples_per_prompt 3", "nearest values"),
        ("train --agent env:Guess --algo.advantage.estimator grupnorm", "Did you mean 'group_norm'"),
        ("train --agent env:Guess --rollout.top_p 0.9", "--rollout.top_p 0.9"),
        ("train --agent env:Guess --algo.dynamic_filtering_range 0 1", "does nothing without"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(words, message, capsys):
    assert main(words.split()) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (LearnerError("rank 1 is gone"), 1, "turngym: LearnerError: rank 1 is gone\n"),
        (OSError(28, "No space left on device", "metrics.jsonl"), 1, "No space left on device: 'metrics.jsonl'\n"),
        (KeyboardInterrupt(), 130, "turngym: interrupted\n"),
    ],
)
def test_what_goes_wrong_on_the_way_is_one_line(error, code, message, capsys, monkeypatch):
    def fail(words: list[str]) -> int:
        raise error

    monkeypatch.setitem(COMMANDS, "train", fail)
    assert main(["train"]) == code
    assert capsys.readouterr().err.endswith(message)
