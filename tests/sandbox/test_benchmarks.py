"""The sandbox's benchmarks run, and end in a line that a program can read."""

import pytest


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("name", ["runs_per_second", "sessions", "compiled"])
def test_the_last_line_holds_the_numbers(check_benchmark, name):
    check_benchmark("sandbox", name)
