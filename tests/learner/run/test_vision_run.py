"""A run with images on two ranks, of which often only one has any: engine and learner agree, and none waits."""

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from turngym.executors.store.store import TrajectoryStore

from ...tiny_vision import make_vision_folder

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("torchvision") is None,
        reason="vLLM reads images with torchvision, which is not installed here",
    ),
]
ENV = '''
import numpy as np

from turngym.envs.base import Env
from turngym.envs.task import Task


class See(Env):
    """Two turns, an image before each and after the last; tasks of an odd number show none."""

    def tasks(self, split, seed):
        return [Task(id=str(number), seed=number) for number in range(8)]

    def reset(self, *, seed=None, options=None):
        self.number, self.turn = options["task"].seed, 0
        return self.shown(), {}

    def step(self, action):
        self.turn += 1
        return self.shown(), float(len(set(action))), self.turn == 2, False, {}

    def shown(self):
        parts = [{"type": "text", "text": "see"}]
        if self.number % 2 == 0:
            pixels = np.random.default_rng(self.number).integers(0, 256, (56, 56, 3), dtype=np.uint8)
            parts.append({"type": "image", "image": pixels})
        return [{"role": "user", "content": parts}]
'''


@pytest.mark.parametrize("more", ["", "--ds.lora.rank 4 --ds.lora.sync adapter"])
def test_two_ranks_learn_from_images(tmp_path, more):
    (tmp_path / "see.py").write_text(ENV)
    model = make_vision_folder(tmp_path / "model")
    words = (
        f"--agent env:{tmp_path}/see.py:See --actor.model_name_or_path {model} --ckpt.output_dir {tmp_path}/run "
        "--data.max_len 160 --rollout.max_new_tokens 6 --rollout.batch_size 4 --rollout.n_samples_per_prompt 2 "
        "--train.batch_size 8 --train.max_steps 2 --ds.param_dtype fp32 --actor.num_gpus_per_node 2 "
        f"--algo.kl.init_coef 0.01 --actor.adam.lr 1e-3 {more}"
    )
    command = [sys.executable, "-m", "turngym", "train", *words.split()]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=800, env=os.environ | {"RAY_AUTH_MODE": "disabled"}
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = [each["mismatch/abs_diff"] for each in steps if "mismatch/abs_diff" in each]
    assert len(found) == 2
    assert max(found) < 1e-4
    if more:
        base, trained = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "run" / "model"))
        changed = {name for name, tensor in base.items() if not torch.equal(tensor, trained[name])}
        assert changed == {name for name in base if re.search(r"\.layers\.\d\..*_proj\.weight", name)}
        assert (tmp_path / "run" / "adapter" / "adapter_config.json").is_file()
    stored = TrajectoryStore(tmp_path / "run" / "trajectories" / "train").read()
    # Some may have written `<|image_pad|>` themselves, which fails an attempt beside images.
    whole = [each.trajectory for each in stored if each.trajectory.is_valid]
    assert len(whole) >= 12
    for trajectory in whole:
        assert len(trajectory.sequences[0].images) == (0 if int(trajectory.task.id) % 2 else 3)
