"""Tokens per second and peak memory of one training step: sequences packed in rows, against rows padded to the longest.

Both in one process on a small random Qwen2 and one thread, alternating, on the same sequences with a long tail. The
padded side is plain PyTorch: transformers' own attention with a mask, all logits, log-softmax.
"""

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from turngym.learner.batch import Batch
from turngym.learner.models.attention import PACKED
from turngym.learner.models.logprobs import action_logprobs
from turngym.learner.ranks.packing import MicroBatching, distribute

GOAL = 1.5
PADDED_ROWS = 8


def make_batch(count: int, longest: int, vocab: int) -> Batch:
    """Lengths are lognormal; the first fifth of each sequence is prompt."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(np.log(longest / 8), 0.9, count).astype(int).clip(10, longest)
    is_action = np.concatenate([np.arange(length) >= length // 5 for length in lengths])
    tokens = len(is_action)
    return Batch(
        token_ids=rng.integers(0, vocab, tokens).astype(np.int32),
        is_action=is_action,
        rollout_logprobs=np.zeros(tokens, np.float32),
        versions=np.zeros(tokens, np.int32),
        temperatures=np.ones(tokens, np.float32),
        turns=np.zeros(tokens, np.int32),
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        attempts=np.arange(count),
        advantages=np.ones(tokens, np.float32),
    )


def make_model(attention: str, vocab: int) -> torch.nn.Module:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocab, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)


def packed_pass(model: torch.nn.Module, batch: Batch, max_tokens: int) -> float:
    total = 0.0
    for micro in distribute(batch.lengths, 1, MicroBatching(max_tokens=max_tokens))[0]:
        loss = -action_logprobs(model, batch.select(micro), "cpu").logprobs_N.sum() / batch.num_actions
        loss.backward()
        total += float(loss.detach())
    return total


def padded_pass(model: torch.nn.Module, batch: Batch) -> float:
    total = 0.0
    for first in range(0, batch.num_sequences, PADDED_ROWS):
        rows = range(first, min(first + PADDED_ROWS, batch.num_sequences))
        shape = (len(rows), int(batch.lengths[list(rows)].max()))
        ids, mask, is_action = (torch.zeros(shape, dtype=kind) for kind in (torch.int64, torch.int64, torch.bool))
        for row, index in enumerate(rows):
            tokens = slice(batch.starts[index], batch.starts[index + 1])
            length = int(batch.lengths[index])
            ids[row, :length] = torch.tensor(batch.token_ids[tokens])
            mask[row, :length] = 1
            is_action[row, :length] = torch.tensor(batch.is_action[tokens])
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
        logprobs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        loss = -logprobs[is_action[:, 1:]].sum() / batch.num_actions
        loss.backward()
        total += float(loss.detach())
    return total


def memory_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def measured(step: Callable[[], float]) -> tuple[float, float, float]:
    """Return what the step returns, its seconds, and by how many MiB memory rose during it."""
    ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back, so that it is not found ready
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark starts again from here
    before, began = memory_kib("VmRSS"), time.perf_counter()
    result = step()
    return result, time.perf_counter() - began, (memory_kib("VmHWM") - before) / 1024


def measure(rounds: int, count: int, longest: int, vocab: int) -> dict[str, object]:
    torch.set_num_threads(1)
    batch = make_batch(count, longest, vocab)
    models = {"packed": make_model(PACKED, vocab), "padded": make_model("sdpa", vocab)}
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=0.0, fused=True) for name, model in models.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    peaks: dict[str, list[float]] = {name: [] for name in models}

    def step(name: str) -> float:
        optimizers[name].zero_grad()
        loss = packed_pass(models[name], batch, 2 * longest) if name == "packed" else padded_pass(models[name], batch)
        optimizers[name].step()
        return loss

    for index in range(rounds + 1):
        losses = {}
        for name in models:
            losses[name], took, peak = measured(lambda name=name: step(name))
            if index:  # the first round warms up
                seconds[name].append(took)
                peaks[name].append(peak)
        assert abs(losses["packed"] - losses["padded"]) < 1e-3, losses
        if index:
            print("{:>5} {:>10.2f} {:>10.2f}".format(index, *(seconds[name][-1] for name in models)), flush=True)
    rate = {name: batch.num_tokens / statistics.median(taken) for name, taken in seconds.items()}
    peak = {name: round(statistics.median(values)) for name, values in peaks.items()}
    print(f"{batch.num_tokens} tokens in {count} sequences; MiB at the peak: {peak['packed']} and {peak['padded']}")
    ratio = statistics.median(b / a for a, b in zip(seconds["packed"], seconds["padded"], strict=True))
    return {
        "name": "learner/packing",
        "value": round(rate["packed"]),
        "unit": "tokens/s",
        "baseline": f"{PADDED_ROWS} sequences a pass, padded to the longest",
        "baseline_value": round(rate["padded"]),
        "ratio": round(ratio, 3),
        "goal": GOAL,
        "met": bool(ratio >= GOAL),
        "where": "CPU, 1 thread",
        "peak_mib": peak["packed"],
        "baseline_peak_mib": peak["padded"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few small rounds, to see that it runs")
    quick = parser.parse_args().quick
    print(f"{'round':>5} {'packed s':>10} {'padded s':>10}")
    result = measure(1, 8, 64, 200) if quick else measure(3, 24, 768, 2048)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
