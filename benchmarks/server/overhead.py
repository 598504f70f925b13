"""What our server costs: answers per second and latency, against the same requests to the engine itself.

The engine is scripted: once it takes no time, so that the server is all there is, and once 5 ms a token. The client is
a process of its own; its processor time is told beside the server's. All sides alternate.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from dataclasses import dataclass

from client import Load, Served, played
from processes import CpuTime, OurServer

GOAL_MS = 3.0  # of processor for one answer
LATENCY_S = 0.005


@dataclass(frozen=True)
class Case:
    """A load, and how fast the engine is."""

    name: str
    sessions: int
    turns: int
    token_latency_s: float = 0.0
    has_tools: bool = False
    streams: bool = False


CASES = [
    Case("chat, 8 turns", 32, 8),
    Case("chat, 8 turns, streamed", 32, 8, streams=True),
    Case("chat, 64 turns", 8, 64),
    Case("tools, 16 turns", 16, 16, has_tools=True),
    Case("256 at once, 4 turns", 256, 4),
    Case("one at a time, 16 turns", 1, 16),
    Case("5 ms a token, 64 at once", 64, 4, token_latency_s=LATENCY_S),
    Case("5 ms a token, streamed", 64, 4, token_latency_s=LATENCY_S, streams=True),
]
QUICK = [Case("chat, 2 turns", 4, 2), Case("tools, streamed", 2, 4, 0.001, has_tools=True, streams=True)]


@dataclass(frozen=True)
class Round:
    """What one case came to once, for each answer: seconds, and of the server's processor."""

    served: Served
    server_cpu_s: float
    direct_s: float  # the engine itself, all requests

    @property
    def num_requests(self) -> int:
        return len(self.served.latencies_s)


def round_of(server: OurServer, case: Case, names: list[str]) -> Round:
    server.tell(open=names)
    urls = [f"{server.url}/s/{name}/v1" for name in names]
    load = Load(urls, server.key, "any", case.turns, 40, 256, case.has_tools, case.streams)
    cpu = CpuTime(server.pid)
    served = played(load)
    server_cpu_s, _ = cpu.used()
    direct_s = float(server.tell(direct=names)["seconds"])
    record = server.tell(close=names)
    if record["num_tokens"] != served.num_tokens or record["num_sequences"] != case.sessions:
        raise RuntimeError(f"{record} came of {case.sessions} sessions with {served.num_tokens} tokens")
    return Round(served, server_cpu_s, direct_s)


def measure(cases: list[Case], rounds: int) -> dict[str, list[Round]]:
    """Take all cases in turn, again and again; the first time warms up."""
    latencies = sorted({case.token_latency_s for case in cases})
    servers = {latency_s: OurServer("--token-latency-s", str(latency_s)) for latency_s in latencies}
    taken: dict[str, list[Round]] = {case.name: [] for case in cases}
    numbers = itertools.count()
    try:
        for index in range(rounds + 1):
            for case in cases:
                kind = "tools" if case.has_tools else "chat"
                names = [f"{kind}{next(numbers)}" for _ in range(case.sessions)]
                made = round_of(servers[case.token_latency_s], case, names)
                if index:
                    taken[case.name].append(made)
    finally:
        for server in servers.values():
            server.stop()
    return taken


def told(name: str, rounds: list[Round]) -> dict[str, object]:
    """Print a case and return it as numbers."""

    def median(values) -> float:
        return statistics.median(values)

    def each_ms(seconds: float, made: Round) -> float:
        return 1000 * seconds / made.num_requests

    rate = median(made.num_requests / made.served.wall_s for made in rounds)
    direct = median(made.num_requests / made.direct_s for made in rounds)
    cpu_ms = median(each_ms(made.server_cpu_s, made) for made in rounds)
    client_ms = median(each_ms(made.served.client_cpu_s, made) for made in rounds)
    latency_ms = 1000 * median(median(made.served.latencies_s) for made in rounds)
    print(f"{name:<28} {rate:>9.0f} {direct:>9.0f} {latency_ms:>9.1f} {cpu_ms:>9.2f} {client_ms:>9.2f}", flush=True)
    return {
        "case": name,
        "requests_per_s": round(rate, 1),
        "engine_requests_per_s": round(direct, 1),
        "ratio": round(rate / direct, 3),
        "latency_ms": round(latency_ms, 2),
        "server_cpu_ms": round(cpu_ms, 3),
        "client_cpu_ms": round(client_ms, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round, to see that it runs")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cases, rounds = (QUICK, 1) if options.quick else (CASES, options.rounds)
    began = time.perf_counter()
    taken = measure(cases, rounds)
    print(f"{'':<28} {'req/s':>9} {'engine':>9} {'median ms':>9} {'CPU ms':>9} {'client ms':>9}")
    results = [told(name, made) for name, made in taken.items()]
    last = results[0]
    print(
        json.dumps(
            {
                "name": "server/overhead",
                "value": last["server_cpu_ms"],
                "unit": "ms of processor a request",
                "baseline": "the client's own, for the same requests",
                "baseline_value": last["client_cpu_ms"],
                "ratio": round(float(str(last["server_cpu_ms"])) / float(str(last["client_cpu_ms"])), 3),
                "goal": GOAL_MS,
                "met": float(str(last["server_cpu_ms"])) <= GOAL_MS,
                "where": f"CPU, {os.cpu_count()} cores",
                "seconds": round(time.perf_counter() - began),
                "cases": results,
            }
        )
    )


if __name__ == "__main__":
    main()
