"""Adapters under ZeRO-3 for real, on one rank and two: gradients, the shared reference, exports, checkpoints."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from turngym.executors.engines.transports import open_bucket
from turngym.executors.engines.weights import checksum, views
from turngym.executors.fleet.ray_calls import call_all
from turngym.learner.batch import Batch
from turngym.learner.losses.objective import Objective
from turngym.learner.losses.policy import PolicyOptions
from turngym.learner.models.attention import PACKED
from turngym.learner.models.logprobs import action_logprobs
from turngym.learner.options import LoraOptions
from turngym.learner.ranks.deepspeed import DeepSpeedConfig
from turngym.learner.ranks.group import Ranks
from turngym.learner.ranks.packing import MicroBatching
from turngym.learner.ranks.rank import RankConfig
from turngym.learner.run.placement import Cluster, Layout

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.timeout(280)]

MASKS = [[0] * 5 + [1] * 12, [0] * 9 + [1] * 3, [0] * 4 + [1] * 30, [0] * 20 + [1]]
LOSS = Objective("ppo", PolicyOptions(), "token-mean", "off", "truncate", (0.0, 2.0))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("logs"))
    yield cluster
    cluster.close()


def make_ranks(
    cluster: Cluster, model: Path, world_size: int, lora: LoraOptions, *, load_in_4bit: bool = False
) -> Ranks:
    config = DeepSpeedConfig(
        model=str(model), param_dtype="fp32", attention=PACKED, lora=lora, load_in_4bit=load_in_4bit
    )
    ranks = cluster.ranks(
        RankConfig(models={"actor": config}, seed=1, num_threads=1, timeout_s=120, bucket_bytes=1 << 20),
        world_size,
        Layout(world_size, 1, 0, 0, threads=1, engine_threads=1),
        batching=MicroBatching(max_tokens=64),
        timeout_s=120,
    )
    call_all(ranks.begin_setup(), 120, "setting up")
    return ranks


def exported(ranks: Ranks) -> dict[str, torch.Tensor]:
    tensors = {}
    for index in range(ranks.plan_export("float32")):
        bucket = ranks.export(index, 60)
        buffer = open_bucket(bucket)
        assert checksum(buffer) == bucket.checksum
        tensors |= {name: tensor.clone() for name, tensor in views(buffer, bucket.tensors)}
    return tensors


def pefts_gradient_norm(base: Path, adapter: Path, batch: Batch) -> float:
    """The same loss without any of our code."""
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    model = PeftModel.from_pretrained(plain, adapter, is_trainable=True)
    loss = torch.zeros(())
    for start, end in zip(batch.starts[:-1], batch.starts[1:], strict=True):
        ids = torch.tensor(batch.token_ids[start:end])[None].long()
        logprobs = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        mask = torch.tensor(batch.is_action[start + 1 : end])
        loss = loss - (torch.tensor(batch.advantages[start + 1 : end]) * logprobs)[mask].sum() / batch.num_actions
    loss.backward()
    return math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None))


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_merged(cluster, tiny_model, make_batch, tmp_path, world_size):
    batch = make_batch(MASKS)
    base = dict(AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).named_parameters())
    ranks = make_ranks(cluster, tiny_model, world_size, LoraOptions(rank=4, alpha=8))
    try:
        # At first the policy is the base model, for the engines and for the reference.
        first = exported(ranks)
        assert first.keys() == base.keys()
        assert all(torch.equal(first[name], base[name]) for name in base)
        reference = ranks.batch_scores(batch, "reference")
        assert reference is not None
        assert np.array_equal(ranks.batch_scores(batch, "actor"), reference)

        # A canary that shows every tensor, and leaves none changed.
        ranks.scale_weights(undo=False)
        perturbed = exported(ranks)
        distances = [(perturbed[n] - base[n]).norm() / base[n].norm() for n in base]
        assert min(distances) > 0.4
        ranks.scale_weights(undo=True)
        assert all(torch.equal(tensor, base[name]) for name, tensor in exported(ranks).items())

        # Steps move the policy and what is exported, and never the reference. The gradient is peft's.
        assert ranks.train(batch, LOSS, lr=1e-2) is not None
        ranks.save_hf(str(tmp_path / "model"), str(tiny_model))
        metrics = ranks.train(batch, LOSS, lr=0.0)
        assert metrics is not None
        assert metrics["policy/grad_norm"] == pytest.approx(
            pefts_gradient_norm(tiny_model, tmp_path / "adapter", batch), rel=1e-4
        )
        later = ranks.batch_scores(batch, "actor")
        assert later is not None
        assert np.abs(later - reference).max() > 0.01
        assert np.array_equal(ranks.batch_scores(batch, "reference"), reference)
        after = exported(ranks)
        changed = {name for name in base if not torch.equal(after[name], base[name])}
        assert changed == {name for name in base if "_proj" in name}

        # The folder holds the merged model, the one beside it the adapter.
        whole = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
        assert all(torch.equal(parameter, after[name]) for name, parameter in whole.named_parameters())
        plain = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
        of_peft = PeftModel.from_pretrained(plain, tmp_path / "adapter").merge_and_unload()
        assert all(torch.allclose(parameter, after[n], atol=1e-6) for n, parameter in of_peft.named_parameters())

        # A checkpoint has the adapters and their moments, and leaves out what never changes.
        ranks.save(str(tmp_path / "checkpoints"), "step_1", {"step": 1})
        size = sum(path.stat().st_size for path in (tmp_path / "checkpoints").rglob("*.pt"))
        assert size < 4 * sum(parameter.numel() for parameter in base.values())
        ranks.train(batch, LOSS, lr=1e-2)
        moved = ranks.batch_scores(batch, "actor")
        assert ranks.load(str(tmp_path / "checkpoints"), "step_1") == {"step": 1}
        assert np.array_equal(ranks.batch_scores(batch, "actor"), later)
        assert np.array_equal(ranks.batch_scores(batch, "reference"), reference)
        ranks.train(batch, LOSS, lr=1e-2)
        assert moved is not None
        assert np.allclose(ranks.batch_scores(batch, "actor"), moved, atol=1e-6)
    finally:
        ranks.close()


@pytest.mark.soak
def test_adapters_alone_travel_under_the_names_that_peft_saves(cluster, tiny_model, make_batch, tmp_path):
    ranks = make_ranks(cluster, tiny_model, 2, LoraOptions(rank=4, alpha=8, sync="adapter"))
    try:
        first = exported(ranks)
        assert len(first) == 56
        assert all(tensor.abs().max() == 0 for name, tensor in first.items() if "lora_B" in name)
        ranks.scale_weights(undo=False)
        assert all(tensor.abs().max() > 0 for tensor in exported(ranks).values())
        ranks.scale_weights(undo=True)
        assert all(torch.equal(tensor, first[name]) for name, tensor in exported(ranks).items())
        assert ranks.train(make_batch(MASKS), LOSS, lr=1e-2) is not None
        tensors = exported(ranks)
        assert not any(torch.equal(tensors[name], first[name]) for name in first if "lora_B" in name)
        ranks.save_hf(str(tmp_path / "model"), str(tiny_model))
        saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
        assert saved.keys() == tensors.keys()
        assert all(torch.equal(saved[name], tensors[name]) for name in tensors)
    finally:
        ranks.close()


@pytest.mark.soak
@pytest.mark.parametrize("world_size", [1, 2])
def test_4_bits_are_sharded_and_dequantised_for_the_engines(cluster, tiny_model, make_batch, tmp_path, world_size):
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes: pip install 'turngym[qlora]'")
    batch = make_batch(MASKS)
    plain = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32, attn_implementation=PACKED)
    of_base = action_logprobs(plain, batch, "cpu").logprobs_N.detach().numpy()
    base = {name: parameter.detach().clone() for name, parameter in plain.named_parameters()}
    ranks = make_ranks(cluster, tiny_model, world_size, LoraOptions(rank=4, alpha=8), load_in_4bit=True)

    def logprobs_of_what_is_exported() -> np.ndarray:
        plain.load_state_dict(exported(ranks), strict=False)
        return action_logprobs(plain, batch, "cpu").logprobs_N.detach().numpy()

    try:
        first = exported(ranks)
        assert {name: tensor.shape for name, tensor in first.items()} == {n: tensor.shape for n, tensor in base.items()}
        errors = {name: float((first[name] - base[name]).norm() / base[name].norm()) for name in base}
        assert {name for name, error in errors.items() if error > 0} == {name for name in base if "_proj" in name}
        assert max(errors.values()) < 0.15  # NF4 of normal weights: 0.09
        reference = ranks.batch_scores(batch, "reference")
        assert np.allclose(ranks.batch_scores(batch, "actor"), logprobs_of_what_is_exported(), atol=1e-4)
        assert not np.allclose(reference, of_base, atol=1e-3)

        ranks.scale_weights(undo=False)
        perturbed = exported(ranks)
        assert min((perturbed[n] - first[n]).norm() / first[n].norm() for n in base) > 0.4
        assert np.allclose(ranks.batch_scores(batch, "actor"), logprobs_of_what_is_exported(), atol=1e-4)
        ranks.scale_weights(undo=True)
        assert all(torch.equal(tensor, first[name]) for name, tensor in exported(ranks).items())

        assert ranks.train(batch, LOSS, lr=1e-2) is not None
        later = ranks.batch_scores(batch, "actor")
        assert np.allclose(later, logprobs_of_what_is_exported(), atol=1e-4)
        assert not np.allclose(later, reference, atol=1e-2)
        assert np.array_equal(ranks.batch_scores(batch, "reference"), reference)
        ranks.save(str(tmp_path), "step_1", {"step": 1})
        ranks.train(batch, LOSS, lr=1e-2)
        assert ranks.load(str(tmp_path), "step_1") == {"step": 1}
        assert np.array_equal(ranks.batch_scores(batch, "actor"), later)
    finally:
        ranks.close()


@pytest.mark.soak
def test_the_average_of_adapters_is_merged_as_well(cluster, tiny_model, make_batch, tmp_path):
    batch = make_batch(MASKS)
    config = DeepSpeedConfig(model=str(tiny_model), param_dtype="fp32", attention=PACKED, lora=LoraOptions(rank=4))
    ranks = cluster.ranks(
        RankConfig(models={"actor": config}, seed=1, num_threads=1, timeout_s=120, ema_beta=0.5),
        1,
        Layout(1, 1, 0, 0, threads=1, engine_threads=1),
        batching=MicroBatching(max_tokens=64),
        timeout_s=120,
    )

    def saved(*, averaged: bool) -> dict[str, torch.Tensor]:
        ranks.save_hf(str(tmp_path / "some"), str(tiny_model), averaged=averaged)
        return dict(AutoModelForCausalLM.from_pretrained(tmp_path / "some", dtype=torch.float32).named_parameters())

    def factors() -> dict[str, torch.Tensor]:
        saved(averaged=False)
        return load_file(tmp_path / "adapter" / "adapter_model.safetensors")

    try:
        call_all(ranks.begin_setup(), 120, "setting up")
        base, expected = saved(averaged=False), factors()
        for _ in range(2):
            ranks.train(batch, LOSS, lr=1e-2)
            now = factors()
            expected = {name: (expected[name] + now[name]) / 2 for name in now}
        average = saved(averaged=True)
        name = "model.layers.0.self_attn.q_proj"
        a, b = (expected[f"base_model.model.{name}.lora_{which}.weight"] for which in "AB")
        merged = base[f"{name}.weight"] + LoraOptions().alpha / 4 * b @ a
        torch.testing.assert_close(average[f"{name}.weight"], merged, atol=1e-6, rtol=1e-5)
        assert not torch.equal(average[f"{name}.weight"], base[f"{name}.weight"])
    finally:
        ranks.close()
