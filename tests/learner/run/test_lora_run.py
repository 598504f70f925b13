"""`turngym train` with adapters for real: it learns, engine and learner agree, and the folders are as promised."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(800)]


@pytest.fixture(scope="module")
def sharp_model(tiny_model: Path, tmp_path_factory) -> Path:
    """The tiny model with larger logits: its head stays frozen under adapters, and could favour no token by much."""
    folder = tmp_path_factory.mktemp("sharp_model")
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    model.model.norm.weight.data.mul_(6)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    return folder


def train(model: Path, run: Path, words: str) -> str:
    command = (
        f"-m turngym train --agent env:CopyText --agent_args.alphabet ab --rollout.max_new_tokens 8 --data.max_len 128 "
        f"--actor.model_name_or_path {model} --ckpt.output_dir {run} --ds.param_dtype fp32 --vllm.kv_cache_gib 0.1 "
        f"--actor.adam.lr 2e-3 --actor.lr_scheduler constant_with_warmup --actor.lr_warmup_ratio 0 "
        f"--rollout.batch_size 8 --rollout.n_samples_per_prompt 8 --train.batch_size 64 --ds.lora.rank 8 {words}"
    )
    done = subprocess.run(
        [sys.executable, *command.split()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("sync", ["merged", "adapter"])
def test_a_run_with_adapters(sharp_model, tmp_path, sync):
    """Two ranks, and a reference that is the actor without its adapters."""
    run = tmp_path / "run"
    words = f"--ds.lora.sync {sync} --actor.num_gpus_per_node 2 --algo.kl.init_coef 1e-3 --ckpt.save_steps 8"
    out = train(sharp_model, run, f"{words} --train.max_steps 8")
    numbers = json.loads((run / "summary.json").read_text())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(numbers["rewards"]) > numbers["rewards"][0] + 0.2, out
    assert numbers["mismatch"] < 1e-4
    assert max(row["mismatch/abs_diff"] for row in rows) < 1e-4
    assert abs(rows[0]["kl/reference"]) < 1e-6  # both are the base model
    assert rows[-1]["kl/reference"] > 0.01

    merged = AutoModelForCausalLM.from_pretrained(run / "model", dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(sharp_model, dtype=torch.float32)
    of_peft = PeftModel.from_pretrained(base, run / "adapter")
    ids = torch.arange(40, 60)[None]
    with torch.no_grad():
        assert (merged(ids).logits - of_peft(ids).logits).abs().max() < 1e-4

    if sync == "adapter":  # a resumed run's canary starts from adapters that do something
        out = train(sharp_model, run, f"{words} --train.max_steps 10 --ckpt.load_enable")
        assert "going on after step 8" in out
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == list(range(1, 11))
        assert max(row["mismatch/abs_diff"] for row in rows) < 1e-4
        assert rows[-1]["reward/mean"] > 0.5 * rows[7]["reward/mean"]
