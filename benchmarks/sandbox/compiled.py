"""Tests of a C++ program per second: compiled once for all of its inputs, against once for each of them.

Both in one run, alternating, in the local sandbox, one program at a time as a grader works.
"""

import argparse
import asyncio
import json
import statistics
import time

from turngym.sandbox.compiling import compile_program
from turngym.sandbox.limits import Limits
from turngym.sandbox.local.backend import LocalSandbox

GOAL = 5.0  # times the tests per second of compiling for each
PROGRAM = """
#include <algorithm>
#include <iostream>
#include <vector>
int main() {
    std::vector<int> numbers;
    for (int number; std::cin >> number;) numbers.push_back(number);
    std::sort(numbers.begin(), numbers.end());
    for (int number : numbers) std::cout << number << "\\n";
}
"""


async def for_each(sandbox: LocalSandbox, inputs: list[bytes]) -> None:
    for stdin in inputs:
        assert (await sandbox.run(PROGRAM, language="cpp", stdin=stdin)).is_ok


async def once(sandbox: LocalSandbox, inputs: list[bytes]) -> None:
    compiled = await compile_program(sandbox, PROGRAM, "cpp", Limits())
    for stdin in inputs:
        assert (await sandbox.run(argv=compiled.argv, files=compiled.files, stdin=stdin)).is_ok


async def measure(rounds: int, count: int) -> dict[str, object]:
    inputs = [" ".join(str(index * factor % 101) for factor in range(50)).encode() for index in range(count)]
    rates: dict[str, list[float]] = {"once": [], "for each": []}
    async with LocalSandbox(num_workers=1) as sandbox:
        for index in range(rounds):
            for name, way in (("once", once), ("for each", for_each)):
                began = time.perf_counter()
                await way(sandbox, inputs)
                rates[name].append(count / (time.perf_counter() - began))
            print(f"{index + 1:>6} {rates['once'][-1]:>12.2f}/s {rates['for each'][-1]:>12.2f}/s", flush=True)
    ratio = statistics.median(a / b for a, b in zip(rates["once"], rates["for each"], strict=True))
    return {
        "name": "sandbox/compiled",
        "value": round(statistics.median(rates["once"]), 2),
        "unit": "tests/s",
        "baseline": "compiled for each test",
        "baseline_value": round(statistics.median(rates["for each"]), 2),
        "ratio": round(ratio, 2),
        "goal": GOAL,
        "met": ratio >= GOAL,
        "where": f"CPU, one worker, {count} inputs of a program",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round, to see that it runs")
    quick = parser.parse_args().quick
    print(json.dumps(asyncio.run(measure(*((1, 2) if quick else (3, 20))))))


if __name__ == "__main__":
    main()
