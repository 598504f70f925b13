"""Learner ranks for real: DeepSpeed ZeRO-3 over gloo in Ray actors, one rank and two."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from turngym.errors import ConfigError
from turngym.executors.engines.transports import open_bucket
from turngym.executors.engines.weights import checksum, views
from turngym.executors.fleet.ray_calls import call_all
from turngym.learner.batch import Batch
from turngym.learner.losses.objective import Objective
from turngym.learner.losses.policy import PolicyOptions
from turngym.learner.losses.value import ValueObjective
from turngym.learner.models.attention import PACKED
from turngym.learner.ranks.deepspeed import DeepSpeedConfig
from turngym.learner.ranks.group import Ranks
from turngym.learner.ranks.packing import MicroBatching
from turngym.learner.ranks.rank import RankConfig
from turngym.learner.run.placement import Cluster, Layout

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.timeout(280)]

# R36's: by tokens, and as 8 x 1, 2 x 4, 1 x 8 sequences.
SPLITS = [MicroBatching(max_tokens=tokens) for tokens in (4096, 64, 20)] + [
    MicroBatching(max_sequences=size) for size in (1, 4, 8)
]
LENGTHS = [(5, 12), (9, 3), (4, 30), (7, 7), (20, 1), (3, 18), (6, 6), (8, 25)]  # context, actions


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("logs"))
    yield cluster
    cluster.close()


def make_ranks(cluster: Cluster, model: Path, world_size: int, dtype: str = "fp32") -> Ranks:
    config = DeepSpeedConfig(model=str(model), param_dtype=dtype, attention=PACKED)
    ranks = cluster.ranks(
        RankConfig(models={"actor": config}, seed=1, num_threads=1, timeout_s=120, bucket_bytes=1 << 20),
        world_size,
        Layout(world_size, 1, 0, 0, threads=1, engine_threads=1),
        batching=MicroBatching(max_tokens=4096),
        timeout_s=120,
    )
    call_all(ranks.begin_setup(), 120, "setting up")
    return ranks


@pytest.fixture(scope="module")
def batch() -> Batch:
    rng = np.random.default_rng(0)
    masks = [np.repeat([False, True], counts) for counts in LENGTHS]
    is_action = np.concatenate(masks)
    num_tokens = len(is_action)
    return Batch(
        token_ids=rng.integers(0, 256, num_tokens).astype(np.int32),
        is_action=is_action,
        rollout_logprobs=np.where(is_action, -5.5, np.nan).astype(np.float32),
        versions=np.where(is_action, 1, -1).astype(np.int32),
        temperatures=np.ones(num_tokens, np.float32),
        turns=np.where(is_action, 0, -1).astype(np.int32),
        starts=np.concatenate([[0], np.cumsum([sum(counts) for counts in LENGTHS])]),
        attempts=np.arange(len(LENGTHS)),
        advantages=np.where(is_action, rng.normal(size=num_tokens), 0).astype(np.float32),
    )


def objective(aggregation: str) -> Objective:
    return Objective("ppo", PolicyOptions(), aggregation, "off", "truncate", (0.0, 2.0))


def plain_gradient_norm(model_folder: Path, batch: Batch, aggregation: str) -> tuple[float, float]:
    """The same loss without any of our code: one sequence after the other, through plain attention."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32, attn_implementation="eager")
    loss = torch.zeros(())
    for start, end in zip(batch.starts[:-1], batch.starts[1:], strict=True):
        ids = torch.tensor(batch.token_ids[start:end])[None].long()
        logprobs = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        mask = torch.tensor(batch.is_action[start + 1 : end])
        terms = -(torch.tensor(batch.advantages[start + 1 : end]) * logprobs)[mask]
        if aggregation == "token-mean":
            loss = loss + terms.sum() / batch.num_actions
        else:
            loss = loss + terms.mean() / len(LENGTHS)
    loss.backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    return float(loss.detach()), norm


@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks(cluster, tiny_model, batch, tmp_path, world_size):
    ranks = make_ranks(cluster, tiny_model, world_size)
    try:
        gradients_are_the_same_for_every_split(ranks, tiny_model, batch)
        exports_are_whole_and_perturbations_exact(ranks, tiny_model)
        checkpoint_and_model_folder_hold_the_trained_weights(ranks, batch, tiny_model, tmp_path)
        a_stop_leaves_the_weights_alone(ranks, batch)
    finally:
        ranks.close()


HAS_FP16 = torch.cuda.is_available() or torch.ops.mkldnn._is_mkldnn_fp16_supported()  # as DeepSpeed finds out


@pytest.mark.skipif(HAS_FP16, reason="DeepSpeed trains in fp16 on this machine")
def test_fp16_is_refused_where_deepspeed_has_none(cluster, tiny_model):
    with pytest.raises(ConfigError, match=r"--ds\.param_dtype fp16: .* this machine's cpu; give bf16 or fp32"):
        make_ranks(cluster, tiny_model, 1, "fp16")


@pytest.mark.skipif(not HAS_FP16, reason="DeepSpeed does not train in fp16 on this machine")
def test_a_step_that_overflows_in_fp16_is_left_out(cluster, tiny_model, batch):
    ranks = make_ranks(cluster, tiny_model, 1, "fp16")
    try:
        before = ranks.batch_scores(batch, "actor")
        huge = replace(batch, advantages=batch.advantages * np.float32(1e6))
        metrics = ranks.train(huge, objective("token-mean"), lr=1e-3)
        assert metrics is not None
        assert metrics["policy/overflows"] == 1.0
        assert "policy/grad_norm" not in metrics
        assert np.array_equal(ranks.batch_scores(batch, "actor"), before)
        metrics = ranks.train(batch, objective("token-mean"), lr=1e-3)
        assert metrics is not None
        assert metrics["policy/grad_norm"] > 0
        assert not np.array_equal(ranks.batch_scores(batch, "actor"), before)
    finally:
        ranks.close()


def gradients_are_the_same_for_every_split(ranks: Ranks, model: Path, batch: Batch) -> None:
    """R36: one gradient, whatever the micro-batches and ranks, equal to plain PyTorch's."""
    for aggregation in ("token-mean", "seq-mean-token-mean"):
        _, expected = plain_gradient_norm(model, batch, aggregation)
        for batching in SPLITS:
            ranks.batching = batching
            metrics = ranks.train(batch, objective(aggregation), lr=0.0)
            assert metrics is not None
            assert metrics["policy/grad_norm"] == pytest.approx(expected, rel=1e-5)
    ranks.batching = MicroBatching(max_tokens=64)
    few = batch.select([0])  # one sequence: a second rank has nothing, and takes part all the same
    metrics = ranks.train(few, objective("token-mean"), lr=0.0)
    assert metrics is not None
    assert metrics["policy/grad_norm"] > 0


def exports_are_whole_and_perturbations_exact(ranks: Ranks, model: Path) -> None:
    true = dict(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).named_parameters())
    num_buckets = ranks.plan_export("float32")
    assert num_buckets > 2  # the buckets of this test are small

    def exported() -> dict[str, torch.Tensor]:
        tensors = {}
        for index in range(num_buckets):
            bucket = ranks.export(index, 60)
            buffer = open_bucket(bucket)
            assert checksum(buffer) == bucket.checksum
            tensors |= {name: tensor.clone() for name, tensor in views(buffer, bucket.tensors)}
        return tensors

    before = exported()
    assert before.keys() == true.keys()
    assert all(torch.equal(before[name], true[name]) for name in true)
    ranks.scale_weights(undo=False)
    perturbed = exported()
    factors = {name: (perturbed[name] / true[name]).nan_to_num(1.0).unique().tolist() for name in true}
    assert {factor for values in factors.values() for factor in values} == {0.5}
    ranks.scale_weights(undo=True)
    assert all(torch.equal(tensor, true[name]) for name, tensor in exported().items())


def checkpoint_and_model_folder_hold_the_trained_weights(ranks: Ranks, batch: Batch, model: Path, folder: Path) -> None:
    loss = objective("token-mean")
    first = ranks.batch_scores(batch, "actor")
    ranks.train(batch, loss, lr=1e-3)
    ranks.save(str(folder), "step_1", {"step": 1})
    ranks.save_hf(str(folder / "model"), str(model))
    saved = ranks.batch_scores(batch, "actor")
    ranks.train(batch, loss, lr=1e-3)
    later = ranks.batch_scores(batch, "actor")
    assert ranks.load(str(folder), "step_1") == {"step": 1}
    restored = ranks.batch_scores(batch, "actor")
    assert not np.allclose(first, saved)
    assert np.array_equal(saved, restored)
    ranks.train(batch, loss, lr=1e-3)  # with the optimiser's moments as they were
    assert np.allclose(ranks.batch_scores(batch, "actor"), later, atol=1e-6)

    loaded = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    ids = torch.tensor(batch.token_ids[: batch.starts[1]])[None].long()
    logprobs = loaded(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].detach().numpy()
    mask = batch.is_action[: batch.starts[1]]
    assert np.allclose(logprobs[mask[1:]], saved[: batch.starts[1]][mask], atol=1e-5)


def a_stop_leaves_the_weights_alone(ranks: Ranks, batch: Batch) -> None:
    before = ranks.batch_scores(batch, "actor")
    ranks.request_stop()
    for _ in range(100):  # the request travels beside the calls
        if ranks.train(batch, objective("token-mean"), lr=0.0) is None:
            break
    else:
        pytest.fail("the ranks never stopped")
    assert before is not None
    assert ranks.batch_scores(batch, "actor") is None
    assert ranks.train(batch, objective("token-mean"), lr=0.0, may_stop=False) is not None


@pytest.mark.soak
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_critic_an_average_and_a_reward_model_share_the_ranks(cluster, tiny_model, batch, tmp_path, world_size):
    torch.manual_seed(0)
    reward_model = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1, dtype=torch.float32)
    reward_model.save_pretrained(tmp_path / "rm")
    actor = DeepSpeedConfig(model=str(tiny_model), param_dtype="fp32", attention=PACKED)
    critic = replace(actor, kind="value", new_head=True)
    reward = replace(actor, kind="value", model=str(tmp_path / "rm"), is_trained=False)
    ranks = cluster.ranks(
        RankConfig({"actor": actor, "critic": critic, "reward": reward}, 1, 1, 120, ema_beta=0.75),
        world_size,
        Layout(world_size, 1, 0, 0, threads=1, engine_threads=1),
        batching=MicroBatching(max_tokens=64),
        timeout_s=120,
    )
    try:
        call_all(ranks.begin_setup(), 120, "setting up")
        the_reward_model_scores(ranks, reward_model, batch)
        the_critic_learns(ranks, batch)
        the_average_follows(ranks, batch, tiny_model, tmp_path)
        all_of_them_come_back(ranks, batch, tiny_model, tmp_path)
    finally:
        ranks.close()


def the_reward_model_scores(ranks: Ranks, reward_model: torch.nn.Module, batch: Batch) -> None:
    scores_N = ranks.batch_scores(batch, "reward")
    assert scores_N is not None
    for start, end in zip(batch.starts[:-1], batch.starts[1:], strict=True):
        ids = torch.tensor(batch.token_ids[start:end])[None].long()
        assert scores_N[end - 1] == pytest.approx(reward_model(ids).logits.item(), abs=1e-5)


def the_critic_learns(ranks: Ranks, batch: Batch) -> None:
    targets_M = np.linspace(-1, 1, batch.num_actions)
    assert not ranks.batch_scores(batch, "critic").any()  # a new head is of zeros
    errors = []
    for _ in range(30):
        values_N = ranks.batch_scores(batch, "critic")
        errors.append(np.square(values_N[batch.is_action] - targets_M).mean())
        seen = batch.with_values(values_N).with_returns(targets_M)
        metrics = ranks.train(seen, ValueObjective(None), 3e-3, role="critic")
        assert metrics["value/loss"] == pytest.approx(errors[-1] / 2, rel=1e-4)
    assert errors[-1] < 0.3 * errors[0]


def the_average_follows(ranks: Ranks, batch: Batch, model: Path, folder: Path) -> None:
    def weights(averaged: bool) -> dict[str, torch.Tensor]:
        ranks.save_hf(str(folder / "some"), str(model), averaged=averaged)
        return dict(AutoModelForCausalLM.from_pretrained(folder / "some", dtype=torch.float32).named_parameters())

    expected = weights(averaged=False)
    for _ in range(3):
        ranks.train(batch, objective("token-mean"), lr=1e-2)
        now = weights(averaged=False)
        expected = {name: 0.75 * expected[name] + 0.25 * now[name] for name in now}
    average = weights(averaged=True)
    for name, tensor in expected.items():
        torch.testing.assert_close(average[name], tensor, atol=1e-6, rtol=1e-5)
    assert not torch.equal(average["model.norm.weight"], now["model.norm.weight"])


def all_of_them_come_back(ranks: Ranks, batch: Batch, model: Path, folder: Path) -> None:
    def state() -> list[np.ndarray]:
        ranks.save_hf(str(folder / "some"), str(model), averaged=True)
        average = AutoModelForCausalLM.from_pretrained(folder / "some").model.norm.weight.detach().numpy()
        return [ranks.batch_scores(batch, "actor"), ranks.batch_scores(batch, "critic"), average]

    before = state()
    ranks.save(str(folder), "step_1", {"step": 1})
    values_N = ranks.batch_scores(batch, "critic")
    seen = batch.with_values(values_N).with_returns(np.ones(batch.num_actions))
    ranks.train(batch, objective("token-mean"), lr=1e-2)
    ranks.train(seen, ValueObjective(0.5), 1e-2, role="critic")
    changed = state()
    ranks.load(str(folder), "step_1")
    for old, new, restored in zip(before, changed, state(), strict=True):
        assert not np.array_equal(old, new)
        assert np.array_equal(old, restored)
    ranks.save_hf(str(folder / "critic"), str(model), "critic")
    loaded = AutoModelForSequenceClassification.from_pretrained(folder / "critic", dtype=torch.float32)
    ids = torch.tensor(batch.token_ids[: batch.starts[1]])[None].long()
    assert loaded(ids[:, :-1]).logits.item() == pytest.approx(before[1][batch.starts[1] - 1], abs=1e-5)
