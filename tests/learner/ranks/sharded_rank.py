"""One of the gloo ranks of test_sharded.py: `sharded_rank.py RANK WORLD_SIZE PORT MODEL OUT`; rank 0 writes OUT."""

import sys
from pathlib import Path

import numpy as np
import torch

from turngym.learner.batch import Batch
from turngym.learner.models.attention import PACKED
from turngym.learner.models.logprobs import action_logprobs
from turngym.learner.ranks.deepspeed import DeepSpeedConfig, DeepSpeedStrategy, init_process_group
from turngym.learner.ranks.optimizers import OptimizerConfig

LENGTHS = (12, 7, 20, 9)
OPTIMIZERS = {
    # A large eps keeps AdamW from turning the rounding of tiny gradients into whole steps.
    "adam": OptimizerConfig(lr=1e-3, eps=1e-2, weight_decay=0.1),
    "muon": OptimizerConfig("muon", lr=1e-3, eps=1e-2, muon_lr=0.02, weight_decay=0.1),
    "muon_plain": OptimizerConfig("muon", lr=1e-3, eps=1e-2, muon_lr=0.02, nesterov=False, ns_steps=3),
}


def make_batch(vocab: int) -> Batch:
    rng = np.random.default_rng(0)
    starts = np.concatenate([[0], np.cumsum(LENGTHS)])
    is_action = np.ones(starts[-1], bool)
    is_action[starts[:-1]] = False
    count = len(is_action)
    return Batch(
        token_ids=rng.integers(0, vocab, count).astype(np.int32),
        is_action=is_action,
        rollout_logprobs=np.zeros(count, np.float32),
        versions=np.ones(count, np.int32),
        temperatures=np.full(count, 0.8, np.float32),
        turns=np.zeros(count, np.int32),
        starts=starts,
        attempts=np.arange(len(LENGTHS)),
        advantages=np.zeros(count, np.float32),
    )


def score(scored) -> torch.Tensor:
    """A loss that needs both outputs of the head."""
    return -(scored.logprobs_N.sum() + 0.5 * scored.entropy_N.sum())


def take_step(name: str, strategy: DeepSpeedStrategy, batch: Batch) -> float | None:
    mine = [index for index in range(len(LENGTHS)) if index % strategy.world_size == strategy.rank]
    micros = [batch.select(mine[:1]), batch.select([]), batch.select(mine[1:])]
    for index, micro in enumerate(micros):
        scored = action_logprobs(strategy.model, micro, "cpu", with_entropy_grad=True)
        strategy.accumulate(score(scored), is_last=index == len(micros) - 1)
    return strategy.step(OPTIMIZERS[name].lr)


def all_weights(strategy: DeepSpeedStrategy) -> dict[str, torch.Tensor]:
    names = [spec.name for spec in strategy.tensor_specs()]
    with strategy.gathered(names) as tensors:
        return {name: tensor.detach().clone() for name, tensor in zip(names, tensors, strict=True)}


def run(name: str, strategy: DeepSpeedStrategy, batch: Batch, folder: Path) -> dict[str, object]:
    norms = [take_step(name, strategy, batch)]
    strategy.save(folder / name, "one", {})
    norms.append(take_step(name, strategy, batch))  # with momentum, and with the first step's trace
    weights = all_weights(strategy)
    strategy.load(folder / name, "one")
    take_step(name, strategy, batch)
    sharded = [name for name, p in strategy.model.module.named_parameters() if not p.ds_persist]
    return {"norms": norms, "weights": weights, "repeated": all_weights(strategy), "sharded": sharded}


def main() -> None:
    rank, world_size, port = (int(argument) for argument in sys.argv[1:4])
    model, out = sys.argv[4:]
    torch.set_num_threads(1)
    device = init_process_group(rank, world_size, "127.0.0.1", port, 120)
    results = {}
    for name, optimizer in OPTIMIZERS.items():
        config = DeepSpeedConfig(
            model, "fp32", PACKED, optimizer=optimizer, gradient_checkpointing=name == "muon", max_norm=30.0
        )
        strategy = DeepSpeedStrategy(config, device)
        results[name] = run(
            name, strategy, make_batch(strategy.model.module.config.vocab_size), Path(out).parent / str(world_size)
        )
    if rank == 0:
        torch.save(results, Path(out))


if __name__ == "__main__":
    main()
