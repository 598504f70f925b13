"""The learner's benchmarks run, and end in a line that a program can read."""

import pytest


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("name", ["packing", "chunked_logprobs"])
def test_the_last_line_holds_the_numbers(check_benchmark, name):
    check_benchmark("learner", name)
