"""A teacher on vLLM, made as a run makes it: its logprobs are the model's own, and a dead engine comes back."""

from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from transformers import AutoModelForCausalLM

from turngym.config import TrainConfig, read_yaml
from turngym.executors.fleet.ray_calls import call_all
from turngym.learner.batch import Batch
from turngym.learner.run.engine_settings import teacher_config
from turngym.learner.run.placement import Cluster, Layout

# A CPU calculates in fp32; a GPU's kernels for attention round the factors of a product to TF32.
DEVICES = [pytest.param(0, 1e-4, id="cpu"), pytest.param(1, 5e-3, id="gpu", marks=pytest.mark.gpu)]
pytestmark = [pytest.mark.soak, pytest.mark.timeout(500)]

MASKS = [
    [0] * 40 + [1] * 30,
    [0, 1, 1, 1],
    [0] * 20 + [1] * 9 + [0] * 50 + [1] * 20 + [0] * 20,
    [0, 0, 1],
    [0] * 127 + [1],
]


def wanted(model_path: Path, batch: Batch, temperature: float) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    logprobs_N = np.zeros(batch.num_tokens, np.float32)
    for first, end in zip(batch.starts[:-1], batch.starts[1:], strict=True):
        ids = torch.tensor(batch.token_ids[first:end]).long()
        with torch.no_grad():
            logprobs = (model(ids[None]).logits[0, :-1] / temperature).log_softmax(-1)
        logprobs_N[first + 1 : end] = logprobs.gather(1, ids[1:, None])[:, 0].numpy()
    return np.where(batch.is_action, logprobs_N, 0)


@pytest.mark.parametrize(("num_gpus", "tolerance"), DEVICES)
def test_the_teachers_logprobs_are_the_models_own(tiny_model: Path, make_batch, tmp_path, num_gpus, tolerance):
    options = tmp_path / "run.yaml"
    options.write_text(
        f"teacher.model_name_or_path: {tiny_model}\n"
        "data.max_len: 128\nrollout.temperature: 0.8\nds.param_dtype: fp32\nvllm.kv_cache_gib: 0.05\n"
    )
    settings = read_yaml(str(options), TrainConfig())
    batch = make_batch(MASKS * 8, vocab=256)
    batch.temperatures[batch.is_action] = 0.8
    lines: list[str] = []
    cluster = Cluster(tmp_path / "logs")
    try:
        layout = Layout(1, 1, num_gpus, num_gpus, threads=2, engine_threads=2)
        teacher = cluster.teacher(
            teacher_config(settings, layout),
            layout,
            num_engines=1,
            gpus_per_engine=num_gpus,
            timeout_s=150,
            start_timeout_s=300,
            max_restarts=1,
            say=lines.append,
        )
        try:
            assert call_all(teacher.begin_start(), 300, "starting the teacher") == [129]
            truth = wanted(tiny_model, batch, 0.8)
            np.testing.assert_allclose(teacher.logprobs(batch), truth, atol=tolerance)
            ray.kill(teacher._actors[0])
            np.testing.assert_allclose(teacher.logprobs(batch), truth, atol=tolerance)
            assert teacher.num_restarts == len(lines) == 1
        finally:
            teacher.close()
    finally:
        cluster.close()
