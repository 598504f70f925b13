"""Programs per second, and CPU time of each, in the sandboxes, against a cold interpreter without isolation.

All in one run, alternating, on the same interpreter and the same number of workers. `fork` is the least that there is:
a warm interpreter that forks and exits. `cold` leaves out the site module, whose cost depends on what is installed. CPU
time is that of every process involved, the fork server, the jails and this process among them.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from cpu_time import MachineMeter, Meter, meter

from turngym.errors import ConfigError
from turngym.sandbox.base import Sandbox
from turngym.sandbox.local.backend import LocalSandbox
from turngym.sandbox.local.plan import interpreter
from turngym.sandbox.registration import make_sandbox

GOAL = 1.5  # times the runs per second of a cold interpreter
GOAL_CPU_MS = 3.5
GOAL_NUMPY = 2.0  # times the CPU time without
PROGRAM = "print(1)"
NUMPY_PROGRAM = "import numpy; print(int(numpy.ones(3).sum()))"
FORKS = """
import os
for _ in range({count}):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
"""


@dataclass
class Way:
    """One way to run programs, and what was measured of it."""

    name: str
    run: Callable[[int], Awaitable[None]]
    share: float = 1.0  # of the runs of a round; less for slow ways
    of_machine: bool = False
    rates: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)


async def fork(count: int) -> None:
    each = count // workers()
    command = [interpreter(), "-I", "-S", "-c", FORKS.format(count=each)]
    started = [await asyncio.create_subprocess_exec(*command) for _ in range(workers())]
    for process in started:
        assert await process.wait() == 0


async def cold(count: int) -> None:
    command = [interpreter(), "-S", "-c", PROGRAM]

    def one(_: int) -> None:
        assert subprocess.run(command, capture_output=True, check=True).stdout == b"1\n"

    def all_of_them() -> None:
        with ThreadPoolExecutor(workers()) as threads:
            list(threads.map(one, range(count)))

    await asyncio.to_thread(all_of_them)


def inside(sandbox: Sandbox, program: str, out: bytes) -> Callable[[int], Awaitable[None]]:
    async def one() -> None:
        result = await sandbox.run(program)
        assert result.out == out, result

    async def run(count: int) -> None:
        await asyncio.gather(*(one() for _ in range(count)))

    return run


def workers() -> int:
    return os.cpu_count() or 1


async def ways() -> list[Way]:
    found = [Way("fork", fork), Way("cold", cold, share=0.5)]
    local, with_numpy = LocalSandbox(), LocalSandbox(preload=("numpy",))
    found.append(Way("local", inside(local, PROGRAM, b"1\n")))
    found.append(Way("local, numpy", inside(with_numpy, NUMPY_PROGRAM, b"3\n")))
    for sandbox in (local, with_numpy):
        await sandbox.start()
    try:
        docker = make_sandbox("docker", {"image": os.environ.get("TURNGYM_DOCKER_IMAGE")})
        await docker.start()
        found.append(Way("docker", inside(docker, PROGRAM, b"1\n"), share=0.02, of_machine=True))
    except ConfigError as error:
        print(f"without docker: {error}", file=sys.stderr)
    return found


async def measure(rounds: int, count: int, group: Meter) -> dict[str, object]:
    hows = {}
    found = await ways()  # what they start is in the group
    print(("{:>6}" + " {:>20}" * len(found)).format("round", *(way.name for way in found)))
    for index in range(rounds + 1):
        for way in found:
            num_runs = max(workers(), int(count * way.share))
            cpu = MachineMeter() if way.of_machine else group
            hows[way.name] = cpu.how
            began, spent = time.perf_counter(), cpu.seconds()
            await way.run(num_runs)
            took, spent = time.perf_counter() - began, cpu.seconds() - spent
            if index:  # the first round warms up
                way.rates.append(num_runs / took)
                way.cpu_ms.append(spent / num_runs * 1000)
        if index:
            cells = (f"{way.rates[-1]:.0f}/s, {way.cpu_ms[-1]:.2f} ms" for way in found)
            print(("{:>6}" + " {:>20}" * len(found)).format(index, *cells), flush=True)
    return report(found, hows)


def report(found: list[Way], hows: dict[str, str]) -> dict[str, object]:
    by_name = {way.name: way for way in found}
    rate = {way.name: round(statistics.median(way.rates), 1) for way in found}
    cpu_ms = {way.name: round(statistics.median(way.cpu_ms), 2) for way in found}
    pairs = zip(by_name["local"].rates, by_name["cold"].rates, strict=True)
    ratio = statistics.median(local / cold for local, cold in pairs)
    numpy_ratio = cpu_ms["local, numpy"] / cpu_ms["local"]
    return {
        "name": "sandbox/runs_per_second",
        "value": rate["local"],
        "unit": "runs/s",
        "baseline": f"cold {os.path.basename(interpreter())} -S -c without isolation",
        "baseline_value": rate["cold"],
        "ratio": round(ratio, 2),
        "goal": GOAL,
        "met": ratio >= GOAL and cpu_ms["local"] <= GOAL_CPU_MS and numpy_ratio <= GOAL_NUMPY,
        "where": f"CPU, {workers()} cores and workers",
        "runs_per_s": rate,
        "cpu_ms_per_run": cpu_ms,
        "cpu_ms_goal": GOAL_CPU_MS,
        "numpy_cpu_ratio": round(numpy_ratio, 2),
        "numpy_goal": GOAL_NUMPY,
        "cpu_counted_by": hows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round, to see that it runs")
    quick = parser.parse_args().quick
    with meter() as group:
        result = asyncio.run(measure(*((1, 20) if quick else (5, 600)), group))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
