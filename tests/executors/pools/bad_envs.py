"""Environments that do in `step` what the action names; made in other processes by this file's path."""

import asyncio
import copy
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from turngym.envs.base import AsyncEnv, Env

HOARD: list[bytearray] = []


class Odd(Env):
    """Counts its steps, over all environments of a process."""

    num_steps = 0

    @classmethod
    def state_dict(cls):
        return {"num_steps": cls.num_steps}

    @classmethod
    def load_state_dict(cls, state):
        cls.num_steps += state["num_steps"]

    def __init__(self, log: str | None = None, slow_s: float = 0.0) -> None:
        time.sleep(slow_s)
        self._log = None if log is None else Path(log)
        self.can, self.fork_s, self.words = True, 0.0, []

    def reset(self, *, seed=None, options=None):
        return options["task"].prompt or "go", {}

    def step(self, action):
        Odd.num_steps += 1
        what, _, argument = str(action).partition(" ")
        return str(getattr(self, f"_{what}")(argument)), 1.0, True, False, {}

    def close(self):
        if self._log is not None:
            with self._log.open("a") as file:
                file.write("closed\n")

    @property
    def can_fork(self):
        return self.can

    def fork(self):
        time.sleep(self.fork_s)
        twin = copy.copy(self)
        twin.words = list(self.words)
        return twin

    def _can(self, answer):
        self.can = answer == "fork"

    def _forks_in(self, seconds):
        self.fork_s = float(seconds)

    def _say(self, word):
        self.words.append(word)
        return " ".join(self.words)

    def _pid(self, _):
        return os.getpid()

    def _nap(self, seconds):
        time.sleep(float(seconds))
        return "rested"

    def _hold(self, seconds):
        ctypes.PyDLL(None).sleep(int(seconds))  # with the interpreter's lock in its hand

    def _leak(self, _):
        while True:
            HOARD.append(bytearray(1 << 24))

    def _exit(self, code):
        os._exit(int(code))

    def _segfault(self, _):
        os.kill(os.getpid(), signal.SIGSEGV)

    def _leave(self, code):
        sys.exit(int(code))

    def _fail(self, words):
        raise KeyError(words)

    def _unpicklable(self, _):
        return Unpicklable()


class Grumpy(Odd):
    """Its state cannot be had."""

    @classmethod
    def state_dict(cls):
        raise KeyError("level")


class Plain(Env):
    """Keeps nothing."""

    def reset(self, *, seed=None, options=None):
        return "go", {}

    def step(self, action):
        time.sleep(float(str(action).partition(" ")[2] or 0))
        return "rested", 1.0, True, False, {}


class Unpicklable:
    def __str__(self):
        raise LookupError("cannot be written")


class AsyncOdd(AsyncEnv):
    """The same on an event loop; `block` keeps it for itself."""

    family = "odd"

    def __init__(self) -> None:
        self.can, self.words = True, []

    async def reset(self, *, seed=None, options=None):
        self._task = asyncio.current_task()
        return "go", {}

    async def step(self, action):
        what, _, argument = str(action).partition(" ")
        return str(await getattr(self, f"_{what}")(argument)), 1.0, True, False, {}

    async def close(self):
        assert asyncio.current_task() is self._task, "closed by another task than the one that reset or forked it"

    @property
    def can_fork(self):
        return self.can

    async def fork(self):
        twin = copy.copy(self)
        twin.words, twin._task = list(self.words), asyncio.current_task()
        return twin

    async def _can(self, answer):
        self.can = answer == "fork"

    async def _say(self, word):
        self.words.append(word)
        return " ".join(self.words)

    async def _pid(self, _):
        return os.getpid()

    async def _nap(self, seconds):
        await asyncio.sleep(float(seconds))

    async def _block(self, seconds):
        time.sleep(float(seconds))

    async def _die(self, _):
        os.kill(os.getpid(), signal.SIGKILL)
