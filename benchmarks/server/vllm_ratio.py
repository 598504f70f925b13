"""Answers per second of our server against vLLM's own OpenAI server, on the same model, from the same client.

Both run all the time, each with an engine of its own that is set alike, and are loaded in turn: with whole answers,
with streams, and with whole answers and their logprobs, which ours has its engine compute in any case. Conversations
send their history as it grows. Taken twice: with SmolLM2-135M-Instruct, whose lowest ratio is the result, and with a
model so small that the server and the logprobs are a large part of the work. `front` is the server's process and
`engine` its child, in processor time.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from client import Load, Served, played
from our_server import GPU_SHARE
from processes import CpuTime, OurServer, VllmServer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "executors"))
import models
import smollm2

from turngym.envs.serving.ports import bound_socket
from turngym.executors.engines.vllm_config import CPU_ENVIRONMENT, ENVIRONMENT, VllmConfig, engine_arguments

GOAL = 1.0
MAX_CONTEXT = 4096
SIDES = ("ours", "vllm")
KINDS = ("whole", "stream", "logprobs")


@dataclass(frozen=True)
class Size:
    """How much is asked in a round."""

    sessions: int
    turns: int
    max_tokens: int


@dataclass(frozen=True)
class Round:
    """What one side did in one round."""

    served: Served
    front_s: float
    engine_s: float

    @property
    def num_requests(self) -> int:
        return len(self.served.latencies_s)

    @property
    def rate(self) -> float:
        return self.num_requests / self.served.wall_s


def round_of(server: OurServer | VllmServer, model: str, size: Size, kind: str, index: int) -> Round:
    names = [f"{kind}{index}-{number}" for number in range(size.sessions)]
    if isinstance(server, OurServer):
        server.tell(open=names)
        urls = [f"{server.url}/s/{name}/v1" for name in names]
    else:
        urls = [f"{server.url}/v1"] * size.sessions
    cpu = CpuTime(server.pid)
    load = Load(
        urls,
        server.key,
        model,
        size.turns,
        40,
        size.max_tokens,
        streams=kind == "stream",
        has_logprobs=kind == "logprobs",
        tag=f"{kind} {index}",
    )
    served = played(load)
    made = Round(served, *cpu.used())
    if isinstance(server, OurServer):
        record = server.tell(close=names)
        if record["num_tokens"] != served.num_tokens:
            raise RuntimeError(f"{record} came of {served.num_tokens} tokens")
    return made


def measure(model: str, size: Size, rounds: int, *, on_gpu: bool) -> dict[tuple[str, str], list[Round]]:
    """Load both in turn; the first round warms up."""
    cores = os.cpu_count() or 1
    with bound_socket("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    environment = ENVIRONMENT if on_gpu else {**ENVIRONMENT, **CPU_ENVIRONMENT, "OMP_NUM_THREADS": str(cores)}
    theirs = VllmServer(model, port, environment, vllm_arguments(model, on_gpu=on_gpu))
    print(f"{'':>3} {'answers/s':<9} {'ours':>8} {'vllm':>8} {'ratio':>8}", flush=True)
    ours = None
    taken: dict[tuple[str, str], list[Round]] = {(side, kind): [] for side in SIDES for kind in KINDS}
    try:
        theirs.wait()
        options = ("--threads", str(cores), "--max-context", str(MAX_CONTEXT), *(("--gpu",) if on_gpu else ()))
        ours = OurServer("--model", model, *options)
        for index in range(rounds + 1):
            for kind in KINDS:
                servers = dict(zip(SIDES, (ours, theirs), strict=True))
                sides = SIDES if index % 2 else SIDES[::-1]  # neither is always the first
                pair = {side: round_of(servers[side], model, size, kind, index) for side in sides}
                rates = [pair[side].rate for side in SIDES]
                print(f"{index:>3} {kind:<9} {rates[0]:>8.1f} {rates[1]:>8.1f} {rates[0] / rates[1]:>8.3f}", flush=True)
                for side in SIDES if index else ():
                    taken[side, kind].append(pair[side])
    finally:
        theirs.stop()
        if ours is not None:
            ours.stop()
    return taken


def vllm_arguments(model: str, *, on_gpu: bool) -> list[str]:
    """Return what sets vLLM's engine as ours is set."""
    config = VllmConfig(model, "bfloat16", MAX_CONTEXT, gpu_memory_utilization=GPU_SHARE)
    ours = engine_arguments(config, on_gpu=on_gpu)
    if on_gpu:
        graphs = json.dumps(ours["compilation_config"])
        memory = ["--gpu-memory-utilization", str(GPU_SHARE), "--compilation-config", graphs]
    else:
        memory = ["--kv-cache-memory-bytes", str(ours["kv_cache_memory_bytes"]), "--enforce-eager"]
    return [
        *("--dtype", "bfloat16", "--max-model-len", str(MAX_CONTEXT), "--max-num-seqs", str(config.max_num_seqs)),
        *("--generation-config", "vllm", "--disable-log-stats", "--disable-uvicorn-access-log"),
        *memory,
    ]


def told(name: str, taken: dict[tuple[str, str], list[Round]]) -> list[dict[str, object]]:
    """Print both sides, and return them as numbers."""
    results = []
    for kind in KINDS:
        for side in SIDES:
            rounds = taken[side, kind]
            cells = {
                "req_per_s": statistics.median(made.rate for made in rounds),
                "latency_ms": 1000 * statistics.median(s for made in rounds for s in made.served.latencies_s),
                "first_ms": 1000 * statistics.median(s for made in rounds for s in made.served.first_s),
                "front_cpu_ms": statistics.median(1000 * made.front_s / made.num_requests for made in rounds),
                "engine_cpu_ms": statistics.median(1000 * made.engine_s / made.num_requests for made in rounds),
                "client_cpu_ms": statistics.median(
                    1000 * made.served.client_cpu_s / made.num_requests for made in rounds
                ),
            }
            print(f"{name:<8} {kind:<9} {side:<5}", *(f"{value:>13.2f}" for value in cells.values()), flush=True)
            results.append(
                {"model": name, "kind": kind, "side": side, **{k: round(value, 2) for k, value in cells.items()}}
            )
    return results


def where(*, on_gpu: bool) -> str:
    """Return what the figures are of."""
    if not on_gpu:
        return f"CPU, {os.cpu_count()} cores"
    import torch

    return f"{torch.cuda.get_device_name()}, {os.cpu_count()} cores"


def ratio_of(taken: dict[tuple[str, str], list[Round]], kind: str) -> float:
    """Return answers per second, ours by theirs, round by round."""
    rounds = zip(taken["ours", kind], taken["vllm", kind], strict=True)
    return statistics.median(mine.rate / other.rate for mine, other in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round of the small model, to see that it runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["tiny", "smollm2"])
    parser.add_argument("--gpu", action="store_true", help="with larger rounds, on this machine's GPU")
    options = parser.parse_args()
    smol = smollm2.model_folder()
    sizes = {"tiny": Size(16, 4, 16), "smollm2": Size(8, 3, 16)}
    if options.gpu:
        sizes = {"tiny": Size(64, 4, 64), "smollm2": Size(64, 4, 64)}
    if options.quick:
        sizes, options.rounds = {"tiny": Size(4, 2, 8)}, 1
    elif options.only:
        sizes = {options.only: sizes[options.only]}
    columns = ("req/s", "median ms", "first ms", "front CPU ms", "engine CPU ms", "client CPU ms")
    taken = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, size in sizes.items():
            inside = Path(folder) / name
            inside.mkdir()
            model = models.endless(models.tiny(smol, inside) if name == "tiny" else smol, inside)
            taken[name] = measure(model, size, options.rounds, on_gpu=options.gpu)
    print(f"{'model':<8} {'kind':<9} {'side':<5}", *(f"{column:>13}" for column in columns))
    cases = [case for name, rounds in taken.items() for case in told(name, rounds)]
    model = next(reversed(taken))  # SmolLM2, where it was taken
    ratios = {name: {kind: round(ratio_of(made, kind), 3) for kind in KINDS} for name, made in taken.items()}
    kind = min(KINDS, key=ratios[model].__getitem__)
    ratio = ratios[model][kind]
    both = {side: statistics.median(made.rate for made in taken[model][side, kind]) for side in SIDES}
    print(
        json.dumps(
            {
                "name": "server/vllm_ratio",
                "value": round(both["ours"], 1),
                "unit": "answers/s",
                "baseline": f"vLLM's own OpenAI server, {model}, {kind}, same client in turn",
                "baseline_value": round(both["vllm"], 1),
                "ratio": ratio,
                "ratios": ratios,
                "goal": GOAL,
                "met": ratio >= GOAL,
                "where": where(on_gpu=options.gpu),
                "cases": cases,
            }
        )
    )


if __name__ == "__main__":
    main()
