"""The executors' benchmarks run, and end in a line that a program can read."""

import pytest


@pytest.mark.soak
@pytest.mark.parametrize("name", ["episodes", "memory", "engine_ratio"])
def test_the_last_line_holds_the_numbers(check_benchmark, name):
    check_benchmark("executors", name, timeout_s=280)
