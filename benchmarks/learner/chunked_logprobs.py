"""Peak memory and seconds of logprobs and their gradients at a vocabulary of 150,000: in tiles, against all logits.

Both in one process, alternating: on one thread of a CPU in fp32, or on a GPU (`--gpu`) in bf16 with longer packs. The
other side is plain PyTorch: a linear layer and a log-softmax in fp32.
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

from turngym.learner.models.chunked_head import head_logprobs

GOAL = 0.25


def tiled(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return head_logprobs(hidden, weight, None, targets, torch.ones_like(targets, dtype=torch.float32))[0]


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return (hidden @ weight.T).float().log_softmax(-1).gather(-1, targets[:, None])[:, 0]


def memory_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def measured_on_gpu(score: Callable[..., Tensor], *tensors: Tensor) -> tuple[float, float]:
    torch.cuda.reset_peak_memory_stats()
    before, (began, ended) = torch.cuda.memory_allocated(), (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    score(*tensors).sum().backward()
    ended.record()
    torch.cuda.synchronize()
    return began.elapsed_time(ended) / 1000, (torch.cuda.max_memory_allocated() - before) / 2**20


def measured_on_cpu(score: Callable[..., Tensor], *tensors: Tensor) -> tuple[float, float]:
    ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back, so that it is not found ready
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark starts again from here
    before, began = memory_kib("VmRSS"), time.perf_counter()
    score(*tensors).sum().backward()
    return time.perf_counter() - began, (memory_kib("VmHWM") - before) / 1024


def measured(score: Callable[..., Tensor], *tensors: Tensor) -> tuple[float, float, Tensor]:
    """Return the seconds, the MiB by which memory rose, and the gradient of the hidden states."""
    hidden, weight, _ = tensors
    hidden.grad = weight.grad = None
    seconds, peak = (measured_on_gpu if hidden.is_cuda else measured_on_cpu)(score, *tensors)
    assert hidden.grad is not None
    return seconds, peak, hidden.grad.clone()


def measure(rounds: int, positions: int, vocab: int, width: int, *, on_gpu: bool = False) -> dict[str, object]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
    hidden = torch.randn(positions, width, device=device, dtype=dtype).requires_grad_()
    weight = (torch.randn(vocab, width, device=device, dtype=dtype) / width**0.5).requires_grad_()
    targets = torch.randint(0, vocab, (positions,), device=device)
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
        error = (grads["tiled"] - grads["plain"]).float().norm() / grads["plain"].float().norm()
        assert error < (1e-2 if on_gpu else 1e-5), f"the two sides' gradients differ by {error:.1e}"
        if index:
            shown = [number for name in sides for number in (seconds[name][-1], peaks[name][-1])]
            print("{:>5} {:>9.3f} {:>10.0f} {:>9.3f} {:>10.0f}".format(index, *shown), flush=True)
    peak_mib = {name: round(statistics.median(values)) for name, values in peaks.items()}
    ratio = statistics.median(a / b for a, b in zip(peaks["tiled"], peaks["plain"], strict=True))
    where = torch.cuda.get_device_name() if on_gpu else "CPU, 1 thread"
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
        "where": f"{where}, {positions} positions, vocabulary {vocab}",
        "seconds_ratio": round(slowdown, 3),
        **({"seconds": round(statistics.median(seconds["tiled"]), 5)} if on_gpu else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few small rounds, to see that it runs")
    parser.add_argument("--gpu", action="store_true", help="on a GPU, with 16,384 positions")
    arguments = parser.parse_args()
    print(f"{'round':>5} {'tiled s':>9} {'tiled MiB':>10} {'plain s':>9} {'plain MiB':>10}")
    size = (1, 64, 3000, 16) if arguments.quick else (3, 512, 150_000, 128)
    result = measure(10, 16_384, 150_000, 1024, on_gpu=True) if arguments.gpu else measure(*size)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
