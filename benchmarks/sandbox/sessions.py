"""What sessions cost: a cell's way there and back, a fork with 100 MB of state, the memory of 200 live ones.

The baseline is a bare interpreter behind pipes that executes lines, without isolation, outputs or errors; it and the
session take turns.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

from turngym.sandbox.base import Sandbox
from turngym.sandbox.checks_leaks import descendants
from turngym.sandbox.limits import Limits
from turngym.sandbox.local.plan import interpreter
from turngym.sandbox.registration import make_sandbox

GOAL_MS = 1.0
GOAL_FORK_MS = 10.0
GOAL_MEMORY_MIB = 2048
BARE = """
import sys
for line in sys.stdin:
    exec(line)
    print(flush=True)
"""


async def round_trips(sandbox: Sandbox, rounds: int, count: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of a cell in the session and in the bare interpreter, one pair for each round."""
    command = [interpreter(), "-I", "-S", "-c", BARE]
    session_ms, bare_ms = [], []
    async with await sandbox.open_session() as session:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as bare:
            assert bare.stdin is not None
            assert bare.stdout is not None
            for index in range(rounds + 1):
                began = time.perf_counter()
                for _ in range(count):
                    result = await session.run_cell("x = 1")
                    assert result.ended == "ok", result
                between = time.perf_counter()
                for _ in range(count):
                    bare.stdin.write(b"x = 1\n")
                    bare.stdin.flush()
                    bare.stdout.readline()
                ended = time.perf_counter()
                if index:  # the first round warms up
                    session_ms.append((between - began) / count * 1000)
                    bare_ms.append((ended - between) / count * 1000)
                    print(f"{index:>6} {session_ms[-1]:>12.3f} {bare_ms[-1]:>12.3f}", flush=True)
    return session_ms, bare_ms


async def fork_ms(sandbox: Sandbox, times: int) -> float | None:
    """Return the median milliseconds of a fork of a session that holds 100 MB; None where it cannot."""
    taken = []
    async with await sandbox.open_session(limits=Limits(memory_bytes=1 << 30)) as session:
        if not session.can_fork:
            return None
        await session.run_cell("state = bytearray(b'1') * 100_000_000")
        for _ in range(times):
            began = time.perf_counter()
            other = await session.fork()
            taken.append((time.perf_counter() - began) * 1000)
            assert (await other.run_cell("len(state)")).value == "100000000"
            await other.close()
    return statistics.median(taken)


async def memory_mib(sandbox: Sandbox, count: int) -> float:
    """Return by how many MiB that many sessions, each after a cell, raise what all processes together hold."""
    before = _held_mib()
    sessions = [await sandbox.open_session() for _ in range(count)]
    try:
        for session in sessions:
            await session.run_cell("import json, re, math; x = list(range(1000)); open('f', 'w').write('x' * 1000)")
        return _held_mib() - before
    finally:
        for session in sessions:
            await session.close()


def _held_mib() -> float:
    """Return the proportional share of memory (PSS) of this process and all its descendants."""
    total = 0
    for pid in descendants(os.getpid()):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it has ended
        total += next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return total / 1024


async def measure(backend: str, rounds: int, count: int, num_sessions: int) -> dict[str, object]:
    arguments = {"image": os.environ.get("TURNGYM_DOCKER_IMAGE")} if backend == "docker" else {}
    async with make_sandbox(backend, arguments) as sandbox:
        print(f"{'round':>6} {'session ms':>12} {'bare ms':>12}")
        session_ms, bare_ms = await round_trips(sandbox, rounds, count)
        forked_ms = await fork_ms(sandbox, 11)
        # A daemon's processes are not ours, so that nobody here can count what they hold.
        held_mib = await memory_mib(sandbox, num_sessions) if backend == "local" else None
    trip = statistics.median(session_ms)
    forked = "cannot" if forked_ms is None else f"{forked_ms:.1f} ms"
    held = "memory not known" if held_mib is None else f"{held_mib:.0f} MiB"
    print(f"cell {trip:.3f} ms; fork with 100 MB: {forked}; {num_sessions} sessions: {held}")
    memory_goal = GOAL_MEMORY_MIB * num_sessions / 200
    fits = held_mib is None or held_mib < memory_goal
    return {
        "name": "sandbox/sessions",
        "value": round(trip, 3),
        "unit": "ms a cell",
        "baseline": "bare interpreter behind pipes",
        "baseline_value": round(statistics.median(bare_ms), 3),
        "ratio": round(statistics.median(a / b for a, b in zip(session_ms, bare_ms, strict=True)), 2),
        "goal": GOAL_MS,
        "met": trip < GOAL_MS and (forked_ms is None or forked_ms < GOAL_FORK_MS) and fits,
        "where": f"CPU, {backend}",
        "fork_100mb_ms": None if forked_ms is None else round(forked_ms, 2),
        "fork_goal_ms": GOAL_FORK_MS,
        "num_sessions": num_sessions,
        "sessions_mib": None if held_mib is None else round(held_mib),
        "sessions_goal_mib": memory_goal,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="local", help="which sandbox; %(default)s by default")
    parser.add_argument("--quick", action="store_true", help="one small round, to see that it runs")
    options = parser.parse_args()
    numbers = (1, 20, 4) if options.quick else (7, 500, 200 if options.backend == "local" else 8)
    print(json.dumps(asyncio.run(measure(options.backend, *numbers))))


if __name__ == "__main__":
    main()
