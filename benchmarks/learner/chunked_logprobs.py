"""Peak memory and seconds of logprobs and their gradients at a vocabulary of 150,000: in tiles, against all logits.

Both in one process on one thread, alternating. The other side is plain PyTorch: a linear layer and log-softmax.
"""

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from turngym.learner.chunked_head import head_logprobs

GOAL = 0.25


def tiled(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return head_logprobs(hidden, weight, None, targets, torch.ones(len(targets)))[0]


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return (hidden @ weight.T).log_softmax(-1).gather(-1, targets[:, None])[:, 0]


def memory_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def measured(score: Callable[..., Tensor], *tensors: Tensor) -> tuple[float, float, Tensor]:
    """Return the seconds, the MiB by which memory rose, and the gradient of the hidden states."""
    hidden, weight, _ = tensors
    hidden.grad = weight.grad = None
    ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back, so that it is not found ready
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark starts again from here
    before, began = memory_kib("VmRSS"), time.perf_counter()
    score(*tensors).sum().backward()
    seconds, peak = time.perf_counter() - began, (memory_kib("VmHWM") - before) / 1024
    assert hidden.grad is not None
    return seconds, peak, hidden.grad.clone()


def measure(rounds: int, positions: int, vocab: int, width: int) -> dict[str, object]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden = torch.randn(positions, width).requires_grad_()
    weight = (torch.randn(vocab, width) / width**0.5).requires_grad_()
    targets = torch.randint(0, vocab, (positions,))
    sides = {"tiled": tiled, "plain": plain}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    peaks: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(rounds + 1):
        grads = {}
        for name, score in sides.items():
            took, peak, grads[name] = measured(score, hidden, weight, targets)
            if index:  # the first round warms up
                seconds[name].append(took)
                peaks[name].append(peak)
        assert torch.allclose(grads["tiled"], grads["plain"], atol=1e-5)
        if index:
            shown = [number for name in sides for number in (seconds[name][-1], peaks[name][-1])]
            print("{:>5} {:>9.2f} {:>10.0f} {:>9.2f} {:>10.0f}".format(index, *shown), flush=True)
    peak_mib = {name: round(statistics.median(values)) for name, values in peaks.items()}
    ratio = statistics.median(a / b for a, b in zip(peaks["tiled"], peaks["plain"], strict=True))
    slowdown = statistics.median(a / b for a, b in zip(seconds["tiled"], seconds["plain"], strict=True))
    return {
        "name": "learner/chunked_logprobs",
        "value": peak_mib["tiled"],
        "unit": "MiB at the peak, the head's gradient included",
        "baseline": "all logits at once",
        "baseline_value": peak_mib["plain"],
        "ratio": round(ratio, 3),
        "goal": GOAL,
        "met": bool(ratio <= GOAL),
        "where": f"CPU, 1 thread, {positions} positions, vocabulary {vocab}",
        "seconds_ratio": round(slowdown, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few small rounds, to see that it runs")
    quick = parser.parse_args().quick
    print(f"{'round':>5} {'tiled s':>9} {'tiled MiB':>10} {'plain s':>9} {'plain MiB':>10}")
    print(json.dumps(measure(1, 64, 3000, 16) if quick else measure(3, 512, 150_000, 128)))


if __name__ == "__main__":
    main()
