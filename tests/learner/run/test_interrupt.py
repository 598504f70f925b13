"""The first signal asks, callbacks run once, and handlers are put back."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from turngym.learner.run.interrupt import EXIT_CODE, Interrupt, signals_raise


def test_a_signal_sets_it_and_calls_back_from_another_thread():
    lines: list[str] = []
    called = threading.Event()
    threads: list[threading.Thread] = []
    before = signal.getsignal(signal.SIGINT)
    with Interrupt(lines.append) as interrupt:
        interrupt.on_set(lambda: (threads.append(threading.current_thread()), called.set()))
        assert not interrupt.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        assert called.wait(10)
        assert interrupt.is_set()
        assert threads[0] is not threading.main_thread()
    assert signal.getsignal(signal.SIGINT) is before
    assert "saving a checkpoint" in lines[0]


def test_a_late_callback_is_called_at_once():
    with Interrupt(lambda line: None) as interrupt:
        interrupt.request()
        calls: list[int] = []
        interrupt.on_set(lambda: calls.append(1))
        assert calls == [1]


def test_the_second_signal_ends_the_process():
    program = (
        "import os, signal, time\n"
        "from turngym.learner.run.interrupt import Interrupt\n"
        "with Interrupt(lambda line: None) as interrupt:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    while not interrupt.is_set(): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(60)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == EXIT_CODE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_before_there_is_anything_to_save_a_signal_ends_the_run_at_once(number):
    before = signal.getsignal(number)
    with signals_raise(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)
    assert signal.getsignal(number) is before
