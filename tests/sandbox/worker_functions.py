"""Functions that worker processes run in tests/sandbox/test_workers.py."""

import ctypes
import os
import subprocess
import sys
import time


class PickyError(Exception):
    """Can be pickled, but not read back."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def act(what: str, *args: object) -> object:
    return globals()[f"_{what}"](*args)


def _pid() -> int:
    return os.getpid()


def _echo(value: object) -> object:
    return value


def _spin() -> None:
    while True:
        pass


def _spin_with_child(path: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"])
    with open(path, "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    _spin()


def _sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def _exit(status: int) -> None:
    os._exit(status)


def _segfault() -> None:
    ctypes.string_at(0)


def _allocate(num_bytes: int) -> int:
    return len(bytearray(num_bytes))


def _raise_value_error() -> None:
    raise ValueError("not a number")


def _raise_picky() -> None:
    raise PickyError(1, 2)


def _print_noise() -> str:
    print("noise", flush=True)
    return "quiet"
