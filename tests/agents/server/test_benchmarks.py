"""The server's benchmarks run, and end in a line that a program can read."""

import pytest


@pytest.mark.soak  # they start several servers, two of them with vLLM, and may have to fetch a model
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["overhead", "vllm_ratio"])
def test_the_last_line_holds_the_numbers(check_benchmark, name):
    check_benchmark("server", name, timeout_s=880)
