"""`turngym train` for real on a tiny model: vLLM, Ray and DeepSpeed; learning, crashes, Ctrl-C and resume."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from turngym.config import TrainConfig, read_yaml
from turngym.executors.store.store import TrajectoryStore

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.timeout(420)]

COPY = "--agent env:CopyText --agent_args.alphabet ab --rollout.max_new_tokens 8"


@pytest.fixture
def options(tiny_model: Path, tmp_path: Path) -> list[str]:
    return (
        f"--actor.model_name_or_path {tiny_model} --ckpt.output_dir {tmp_path / 'run'} --ds.param_dtype fp32 "
        "--data.max_len 128 --algo.kl.init_coef 0 --actor.adam.lr 3e-3 --actor.lr_scheduler constant_with_warmup "
        "--actor.lr_warmup_ratio 0 --vllm.kv_cache_gib 0.1"
    ).split()


def command(options: Sequence[str], words: str) -> list[str]:
    return [sys.executable, "-m", "turngym", "train", *options, *words.split()]


def train(options: Sequence[str], words: str, expect: int = 0) -> str:
    done = subprocess.run(
        command(options, words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400
    )
    assert done.returncode == expect, done.stdout
    return done.stdout


def summary(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "run" / "summary.json").read_text())


def rows(tmp_path: Path) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]


def test_it_learns_and_leaves_what_was_promised(options, tmp_path):
    """Two ranks; a random model finds the alphabet, and engine and learner agree to 1e-4 in fp32."""
    out = train(
        options,
        f"{COPY} --actor.num_gpus_per_node 2 --rollout.batch_size 8 --rollout.n_samples_per_prompt 8 "
        "--train.batch_size 64 --train.max_steps 20 --eval.at_start --eval.at_end --eval.max_samples 32 "
        "--eval.temperature 1 --eval.n_samples_per_prompt 2 --logger.trajectories_per_step 2",
    )
    run = tmp_path / "run"
    numbers = summary(tmp_path)
    assert numbers["before"] < 0.15
    assert numbers["after"] > 0.4, out
    assert numbers["mismatch"] < 1e-4
    assert numbers["is_complete"]
    assert (numbers["steps"], numbers["version"]) == (20, 20)  # the canary's weights are none of the run's
    assert len(numbers["rewards"]) == 20
    assert numbers["seconds_per_stage"]["train"] > 0
    assert "before" in out
    assert "after" in out
    assert (run / "reward.png").stat().st_size > 1000
    assert read_yaml(str(run / "config.yaml"), TrainConfig()).agent == "env:CopyText"
    stored = list(TrajectoryStore(run / "trajectories" / "train").read())
    assert len(stored) == 40
    # Versions of the tokens: each step sampled with the weights that the step before it sent.
    versions = [int(s.trajectory.sequences[0].versions.max()) for s in stored]
    assert versions == [step // 2 for step in range(40)]

    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(run / "model")
    assert AutoTokenizer.from_pretrained(run / "model").chat_template


@pytest.mark.parametrize("partial", ["", "--train.partial_rollout_enable"])
@pytest.mark.soak
def test_rollouts_run_ahead_of_the_learner_and_it_learns_all_the_same(options, tmp_path, partial):
    """Within the bound at consumption, nothing finished expires, and what is fresh matches the learner in fp32."""
    out = train(
        options,
        f"{COPY} --train.async_enable --train.async_queue_size 2 {partial} --rollout.batch_size 8 "
        "--rollout.n_samples_per_prompt 8 --train.batch_size 64 --train.max_steps 30 --eval.at_start --eval.at_end "
        "--eval.max_samples 32 --eval.temperature 1 --eval.n_samples_per_prompt 2 --logger.trajectories_per_step -1",
    )
    steps, numbers = rows(tmp_path), summary(tmp_path)
    assert numbers["after"] > numbers["before"] + 0.25, out
    assert (numbers["steps"], numbers["version"]) == (30, 30)
    assert max(row["staleness/max"] for row in steps) <= 3
    assert steps[10]["staleness/mean"] > 0.5
    assert "rollouts/groups_expired" not in steps[-1]
    assert max(row["mismatch/abs_diff/lag_0"] for row in steps if "mismatch/abs_diff/lag_0" in row) < 1e-4
    stored = [s.trajectory for s in TrajectoryStore(tmp_path / "run" / "trajectories" / "train").read()]
    assert len(stored) == 30 * 64
    assert len({t.task.id for t in stored}) == 30 * 8  # no task twice


@pytest.fixture
def reward_model(tiny_model: Path, tmp_path: Path) -> Path:
    """A random classifier over the tiny model's tokens."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1, dtype=torch.float32)
    model.save_pretrained(tmp_path / "reward_model")
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path / "reward_model")
    return tmp_path / "reward_model"


@pytest.mark.soak
def test_ppo_with_a_critic_a_reward_model_a_reference_and_an_average(options, reward_model, tmp_path):
    """All roles at once: the critic comes to explain the returns, the reward rises, everything is saved."""
    ppo = (
        "--algo.advantage.estimator gae --critic.adam.lr 3e-4 --critic.lr_scheduler constant --critic.freezing_steps 2 "
    )
    out = train(
        options,
        f"{COPY} {ppo} --critic.num_gpus_per_node 1 --critic.save_value_network --reward.model_name_or_path "
        f"{reward_model} --reward.weights 1 0.01 --algo.kl.init_coef 0.001 --algo.kl.target 0.5 --train.enable_ema "
        "--rollout.batch_size 8 --rollout.n_samples_per_prompt 8 --train.batch_size 64 --train.max_steps 30",
    )
    metrics, run = rows(tmp_path), tmp_path / "run"
    assert [row["version"] for row in metrics[:4]] == [0, 0, 1, 2], out  # the actor was held back for two steps
    assert "policy/grad_norm" not in metrics[1]
    first, last = (np.mean([row["reward/env"] for row in part]) for part in (metrics[:3], metrics[-3:]))
    assert last > first + 0.15, out
    assert metrics[-1]["value/loss"] < metrics[0]["value/loss"]
    assert metrics[-1]["value/explained_variance"] > 0.1
    assert max(row["mismatch/abs_diff"] for row in metrics[2:]) < 1e-4
    assert metrics[-1]["kl/coef"] != 0.001
    assert metrics[-1]["kl/reference"] > 0

    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    model, average = (AutoModelForCausalLM.from_pretrained(run / name) for name in ("model", "model_ema"))
    assert not torch_equal(model, average)
    assert AutoModelForSequenceClassification.from_pretrained(run / "critic").score.weight.any()


def torch_equal(first: Any, second: Any) -> bool:
    return all(bool((a == b).all()) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.soak
def test_a_teacher_is_followed_without_any_reward(options, tiny_model, tmp_path):
    """The teacher never says a few letters: neither does the actor in the end."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    teacher = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.no_grad():
        teacher.model.norm.weight.mul_(3)  # a sharper distribution over the same tokens
    teacher.save_pretrained(tmp_path / "teacher")
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path / "teacher")
    train(
        options,
        f"{COPY} --algo.advantage.estimator on_policy_distill --teacher.model_name_or_path {tmp_path / 'teacher'} "
        "--rollout.batch_size 8 --rollout.n_samples_per_prompt 8 --train.batch_size 64 --train.max_steps 25",
    )
    divergences = [row["distill/reverse_kl"] for row in rows(tmp_path)]
    assert np.mean(divergences[-5:]) < 0.5 * np.mean(divergences[:3])


CRASHES = '''
import os, signal, time
import psutil
from turngym import Env

class Crashes(Env):
    """Breaks in each way once: raises, returns nonsense, kills the engine, kills the whole actor."""

    def __init__(self, marks: str) -> None:
        self.marks = marks

    def once(self, name: str) -> bool:
        try:
            file = os.open(f"{self.marks}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        os.write(file, str(os.getpid()).encode())
        os.close(file)
        return True

    def engine_died_before(self) -> bool:
        """Its episodes lived on: this one began after it, in the same actor."""
        path = f"{self.marks}/engine"
        return os.path.exists(path) and os.path.getmtime(path) < self.began

    def reset(self, *, seed=None, options=None):
        self.number, self.began = options["task"].seed, time.time()
        if self.number % 5 == 0:
            raise ValueError("this task is broken for good")
        return "say a", {}

    def step(self, action):
        if self.once("raise"):
            raise RuntimeError("a tool broke")
        if self.once("nonsense"):
            return "observation", None, True, False, {}
        if self.number % 2 and self.once("engine"):
            for child in psutil.Process().children(recursive=True):
                if "EngineCore" in child.name() or "EngineCore" in " ".join(child.cmdline()):
                    child.send_signal(signal.SIGKILL)
        if self.engine_died_before() and self.once("actor"):
            os.kill(os.getpid(), signal.SIGKILL)
        return "", float(action.count("a")), True, False, {}
'''


@pytest.mark.soak
def test_crashes_are_typed_and_counted_and_the_run_goes_on(options, tmp_path):
    (tmp_path / "crashes.py").write_text(CRASHES)
    (tmp_path / "marks").mkdir()
    out = train(
        options,
        f"--agent env:{tmp_path / 'crashes.py'}:Crashes --agent_args.marks {tmp_path / 'marks'} "
        "--rollout.max_new_tokens 6 --rollout.batch_size 5 --rollout.n_samples_per_prompt 4 --train.batch_size 20 "
        "--train.max_steps 6 --logger.trajectories_per_step -1 --rollout.max_retries 1",
    )
    numbers, steps = summary(tmp_path), rows(tmp_path)
    marks = {path.name for path in (tmp_path / "marks").iterdir()}
    assert {"raise", "nonsense", "engine", "actor"} <= marks
    assert numbers["engine_restarts"] == 2
    assert out.count("engine 0 starts anew") == 2
    assert out.count("in a new process") == 1
    assert len(steps) == 6
    assert sum(row["attempts/retries"] for row in steps) >= 2  # what broke once was begun again
    trajectories = [s.trajectory for s in TrajectoryStore(tmp_path / "run" / "trajectories" / "train").read()]
    broken = [t for t in trajectories if t.task.seed % 5 == 0]
    assert broken
    assert all(t.failure is not None and t.failure.kind.value == "env" for t in broken)
    assert all(t.failure is None for t in trajectories if t.task.seed % 5)
    assert sum(row["attempts/failed"] for row in steps) == len(broken) == numbers["failed_attempts"]
    assert steps[-1]["rollouts/groups_dropped"] == len(broken) / 4  # and another task was drawn for each
    assert all(row["attempts/valid"] == 20 for row in steps)


REWARD = """
async def reward_func(queries, prompts, labels, **kwargs):
    if labels[0] == "raise":
        raise RuntimeError("the reward service is down")
    if labels[0] == "nan":
        return [float("nan")]
    return {"rewards": [float(query.count("a")) for query in queries], "scores": [0.0], "extra_logs": {"seen": 1.0}}
"""


@pytest.mark.soak
def test_a_reward_file_that_fails_for_some_rows(options, tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    labels = ["raise", "nan", "good", "good", "good", "good"]
    (tmp_path / "data.jsonl").write_text(
        "".join(json.dumps({"p": f"task {i}", "l": x}) + "\n" for i, x in enumerate(labels))
    )
    train(
        options,
        f"--data.prompt_dataset {tmp_path / 'data.jsonl'} --data.input_key p --data.label_key l "
        f"--data.apply_chat_template --reward.remote_url {tmp_path / 'reward.py'} --rollout.max_new_tokens 6 "
        "--rollout.batch_size 6 --rollout.n_samples_per_prompt 4 --train.batch_size 12 --train.num_episodes 2 "
        "--rollout.max_retries 0 --ckpt.no_save_hf",
    )
    steps = rows(tmp_path)  # of twelve draws four are dropped, which leaves a step of six and one of two
    assert [row["attempts/valid"] for row in steps] == [24, 8]
    assert sum(row["attempts/failed"] for row in steps) == sum(row.get("failures/reward", 0) for row in steps) == 16
    assert all(row["env/seen"] == 1.0 for row in steps)


@pytest.mark.soak
def test_a_run_in_which_all_fails_stops_with_a_clear_error(options, tmp_path):
    (tmp_path / "bad.py").write_text(
        "from turngym import Env\n"
        "class Bad(Env):\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return 7, {}\n"
    )
    out = train(
        options,
        f"--agent env:{tmp_path / 'bad.py'}:Bad --rollout.batch_size 2 --rollout.n_samples_per_prompt 2 "
        "--train.batch_size 4",
        expect=1,
    )
    assert "4 of 4 attempts of this step failed" in out
    assert "Bad" in out
    assert "Traceback" not in out


def wait_for(path: Path, condition: Callable[[str], bool], process: subprocess.Popen[str], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if path.exists() and condition(path.read_text()):
            return
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        time.sleep(0.05)
    pytest.fail(f"{path} was not as wanted within {timeout_s} s")


@pytest.mark.soak
def test_ctrl_c_stops_within_ten_seconds_and_the_run_goes_on(options, tmp_path):
    words = f"{COPY} --rollout.batch_size 4 --rollout.n_samples_per_prompt 4 --train.batch_size 16 --eval.at_start"
    words += " --eval.max_samples 4"
    process = subprocess.Popen(
        command(options, words + " --train.max_steps 1000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    try:
        wait_for(metrics, lambda text: text.count("\n") >= 3, process, 200)
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everyone in the group gets it
        began = time.monotonic()
        out, _ = process.communicate(timeout=60)
        took = time.monotonic() - began
    finally:
        process.kill()
    assert process.returncode == 130, out
    assert took < 10, f"stopping took {took:.1f} s\n{out}"
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive, alive
    done = len(rows(tmp_path))
    assert summary(tmp_path)["steps"] == done >= 3
    assert not summary(tmp_path)["is_complete"]

    out = train(options, words + f" --train.max_steps {done + 2} --ckpt.load_enable")
    assert f"going on after step {done}" in out
    assert [row["step"] for row in rows(tmp_path)] == list(range(1, done + 3))
    numbers = summary(tmp_path)
    assert numbers["is_complete"]
    assert numbers["before"] is not None  # measured before the interruption
    # No task of the first part comes again, and none is left out.
    ids = [s.trajectory.task.id for s in TrajectoryStore(tmp_path / "run" / "trajectories" / "train").read()]
    assert len(set(ids)) == len(ids) / 4


@pytest.mark.soak
def test_a_killed_driver_leaves_no_process(options, tmp_path):
    words = f"{COPY} --rollout.batch_size 4 --rollout.n_samples_per_prompt 4 --train.batch_size 16"
    process = subprocess.Popen(command(options, words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(tmp_path / "run" / "metrics.jsonl", lambda text: text.count("\n") >= 1, process, 200)
        children = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive, alive
