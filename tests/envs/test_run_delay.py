import subprocess
import sys

import pytest

from turngym.envs import run_delay
from turngym.envs.run_delay import run_delay_s

PROGRAM = """
import os, threading, time
from turngym.envs.run_delay import run_delay_s
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if os.fork() == 0:
    ends_at = time.monotonic() + 1
    while time.monotonic() < ends_at:
        pass
    os._exit(0)
before, began_at, cpu_at = run_delay_s(), time.monotonic(), time.thread_time()
while time.monotonic() < began_at + 0.5:
    pass
print(run_delay_s() - before, time.monotonic() - began_at - (time.thread_time() - cpu_at))
"""


@pytest.mark.slow
@pytest.mark.skipif(not run_delay_s(), reason="this kernel does not count it")
def test_what_another_program_takes_of_the_only_core_is_counted():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    counted, missed = map(float, done.stdout.split())
    assert counted == pytest.approx(missed, abs=0.05)
    assert counted > 0.1


def test_without_the_kernels_count_it_is_none(monkeypatch, tmp_path):
    for path, text in ((tmp_path / "none", None), (tmp_path / "short", "1\n"), (tmp_path / "odd", "a b c")):
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(run_delay, "_SCHEDSTAT", path)
        assert run_delay_s() == 0.0
