"""What a killed driver began ends with it; what a driver leaves on purpose stays."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the guardian finds processes in /proc")

DRIVER = """
import subprocess, sys, time
from turngym.learner.run.guardian import Guardian

unmarked = subprocess.Popen(["sleep", "60"])
guardian = Guardian()
# Through a shell that ends, into a session of its own: an orphan that no tree of processes shows.
marked = subprocess.run("setsid sleep 60 >/dev/null 2>&1 & echo $!", shell=True, capture_output=True, text=True)
if sys.argv[1] == "dismiss":
    guardian.dismiss()
print(unmarked.pid, marked.stdout.strip(), guardian.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def begin():
    began: list[psutil.Process] = []

    def start(word: str) -> tuple[subprocess.Popen[str], list[psutil.Process], int]:
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, word], stdout=subprocess.PIPE, text=True)
        began.append(psutil.Process(driver.pid))
        assert driver.stdout is not None
        unmarked, marked, guardian = map(int, driver.stdout.readline().split())
        sleepers = [psutil.Process(pid) for pid in (unmarked, marked)]
        began.extend(sleepers)
        return driver, sleepers, guardian

    yield start
    for process in began:
        if process.is_running():
            process.kill()


@pytest.mark.slow
def test_what_a_killed_driver_began_is_killed(begin):
    driver, (unmarked, marked), guardian = begin("stay")
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    _, alive = psutil.wait_procs([marked], timeout=10)
    assert not alive
    assert unmarked.is_running()  # it was there before the guardian
    psutil.wait_procs([psutil.Process(guardian)] if psutil.pid_exists(guardian) else [], timeout=10)
    assert not psutil.pid_exists(guardian)


def test_after_dismissal_nothing_is_killed(begin):
    driver, (_, marked), guardian = begin("dismiss")
    assert not psutil.pid_exists(guardian)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert marked.is_running()
