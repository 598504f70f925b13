"""The demo as it is: a real model learns real tasks, and the folder it leaves is that better model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from turngym.config import TrainConfig, read_yaml
from turngym.envs.resolution import resolve

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


def score(folder: Path, num_tasks: int) -> float:
    """Greedy reward on held-out tasks that the run did not evaluate on, by transformers alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = read_yaml(str(ROOT / "examples" / "demo.yaml"), TrainConfig())
    assert config.agent is not None
    factory = resolve(config.agent.removeprefix("env:"), config.agent_args)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rewards = []
    for task in factory.tasks("eval", 777)[:num_tasks]:
        env = factory()
        messages, _ = env.reset(options={"task": task})
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.no_grad():
            ids = model.generate(**inputs, max_new_tokens=24, do_sample=False)
        text = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        rewards.append(float(env.step(text)[1]))
    return sum(rewards) / len(rewards)


def test_the_demo_learns(smollm2: Path, tmp_path: Path):
    command = [sys.executable, "-m", "turngym", "train", "--config", str(ROOT / "examples" / "demo.yaml")]
    command += ["--actor.model_name_or_path", str(smollm2), "--ckpt.output_dir", str(tmp_path / "demo")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert summary["after"] - summary["before"] >= 0.20, done.stdout
    assert summary["peak_memory_gib"] < 14
    before, after = score(smollm2, 100), score(tmp_path / "demo" / "model", 100)
    assert after - before >= 0.15, f"measured again from the folder: {before} before, {after} after"
