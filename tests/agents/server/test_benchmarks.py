"""The server's benchmarks run, and end in a line that a program can read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks" / "server"
FIELDS = {"name", "value", "unit", "baseline", "baseline_value", "ratio", "goal", "met", "where"}


@pytest.mark.soak  # they start several servers, two of them with vLLM, and may have to fetch a model
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["overhead", "vllm_ratio"])
def test_the_last_line_holds_the_numbers(name):
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result.keys() >= FIELDS
    assert result["name"] == f"server/{name}"
    assert result["value"] > 0
    assert result["baseline_value"] > 0
