"""The executors' benchmarks run, and end in a line that a program can read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "executors"
FIELDS = {"name", "value", "unit", "baseline", "baseline_value", "ratio", "goal", "met", "where"}


@pytest.mark.soak
@pytest.mark.parametrize("name", ["episodes", "memory", "engine_ratio"])
def test_the_last_line_holds_the_numbers(name):
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result.keys() >= FIELDS
    assert result["name"] == f"executors/{name}"
    assert result["value"] > 0
    assert result["baseline_value"] > 0
