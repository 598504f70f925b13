"""Checks that every run begins from the same clean start, whatever ran before it; each yields what is wrong."""

import json
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

from .base import Sandbox
from .checks_host import marked_processes, marking, new_mark
from .limits import Limits

LOOK = """
import builtins, json, os, resource, signal, sys, threading

def below(folder):
    found = []
    for root, folders, files in os.walk(folder):
        found += [os.path.join(root, name).encode(errors="surrogateescape").hex() for name in folders + files]
    return sorted(found)

def lines(path):
    try:
        with open(path) as file:
            return len(file.readlines())
    except OSError:
        return None

def is_open(number):
    try: os.fstat(number)
    except OSError: return False
    return True

def mode(path):
    try: return oct(os.stat(path).st_mode), os.stat(path).st_uid == os.getuid()
    except OSError: return None

def handler(number):
    current = signal.getsignal(number)
    return current.value if isinstance(current, signal.Handlers) else "a function" if current else None

folders = ("/box", "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run")
umask = os.umask(0o22)
print(json.dumps({
    "files": {folder: below(folder) for folder in folders},
    "modes": {folder: mode(folder) for folder in folders},
    "environment": dict(os.environ),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")) if os.path.isdir("/proc") else None,
    "descriptors": [number for number in range(1024) if is_open(number)],
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name[:7] == "RLIMIT_"
               and name != "RLIMIT_AS"},  # which may start from what the interpreter already has
    "umask": umask,
    "users": [os.getresuid(), os.getresgid(), sorted(os.getgroups())],
    "folder": os.getcwd(),
    "priority": [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
    "signals": [handler(number) for number in sorted(signal.valid_signals())],
    "blocked signals": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    "timers": [signal.getitimer(kind) for kind in (0, 1, 2)],
    "threads": threading.active_count(),
    "machine": list(os.uname()),
    "shared memory": [lines(f"/proc/sysvipc/{kind}") for kind in ("shm", "msg", "sem")],
    "mounts": lines("/proc/self/mountinfo"),
    "modules": sorted(sys.modules),
    "path": sys.path,
    "arguments": sys.argv,
    "builtins": sorted(dir(builtins)),
    "recursion": sys.getrecursionlimit(),
    "input": sys.stdin.read(),
}))
"""
_LIMITS = Limits(wall_s=20.0, num_open_files=128)
_INPUT = "what is to be read"

LEAVE = """
import builtins, ctypes, os, resource, signal, sys, time
libc = ctypes.CDLL(None)
for folder in ("/box", "/tmp", "/var/tmp", "/dev/shm", "/run"):
    try: open(folder + "/turngym-left", "w").write("x")
    except OSError: pass
for key in (0x7467, 0):
    libc.shmget(key, 4096, 0o1666)
    libc.msgget(key, 0o1666)
    libc.semget(key, 1, 0o1666)
os.umask(0)
os.environ["LEFT"] = "x"
sys.path.append("/left")
sys.modules["left"] = sys
builtins.left = 1
sys.setrecursionlimit(5000)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
os.setpriority(os.PRIO_PROCESS, 0, 19)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
for path, mode in (("/box", 0o700), ("/tmp", 0o700), ("/dev/shm", 0o700)):
    try: os.chmod(path, mode)
    except OSError: pass
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        os.closerange(0, 3)
        time.sleep(1000)
print("left")
"""


async def look(sandbox: Sandbox) -> dict[str, Any]:  # Any: JSON
    """Return what a program finds at its start.

    Raises:
        LookupError: The program did not end well.
    """
    result = await sandbox.run(LOOK, stdin=_INPUT.encode(), limits=_LIMITS)
    if not result.is_ok or result.is_out_truncated:
        raise LookupError(f"a program that looks around ended as {result.ended!r}: {result.err_text[-500:]}")
    found: dict[str, Any] = json.loads(result.out)
    return found


def changes(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Yield how one start differs from another."""
    for name, value in before.items():
        if after[name] != value:
            yield f"{name}: {_difference(value, after[name])}"


def _difference(before: object, after: object) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        parts = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
        return "; ".join(f"{part} {_difference(before.get(part), after.get(part))}" for part in parts)
    if isinstance(before, list) and isinstance(after, list):
        more, fewer = [x for x in after if x not in before], [x for x in before if x not in after]
        return f"{more!r:.300} is new" + (f", {fewer!r:.300} is gone" if fewer else "")
    return f"was {before!r:.200} and is {after!r:.200}"


async def check_clean_start(sandbox: Sandbox) -> AsyncIterator[str]:
    """A run sees nothing of an earlier one: files, processes, shared memory, settings."""
    before = await look(sandbox)
    if before["input"] != _INPUT:
        yield f"a program read {before['input']!r:.100} from its stdin, not {_INPUT!r}"
    for _ in range(4):  # more than one worker may serve
        left = await sandbox.run(LEAVE, limits=_LIMITS)
        if not left.is_ok:
            yield f"a program that leaves things behind ended as {left.ended!r}: {left.err_text[-300:]}"
        for change in changes(before, await look(sandbox)):
            yield f"a run sees what an earlier one left: {change}"


async def check_little_inherited(sandbox: Sandbox) -> AsyncIterator[str]:
    """A program finds no open files but its three streams, and nothing but harmless variables of the host."""
    found = await look(sandbox)
    if found["descriptors"] != [0, 1, 2]:
        yield f"a program finds open files {found['descriptors']}, not 0, 1 and 2"
    harmless = {"PATH", "HOME", "PWD", "SHLVL", "_", "TERM", "LANG", "USER", "LOGNAME", "SHELL", "TZ", "HOSTNAME"}
    same = {name for name, value in found["environment"].items() if os.environ.get(name) == value} - harmless
    shared = sorted(
        name for name in same if not name.startswith(("LC_", "PYTHON")) and not name.endswith("_NUM_THREADS")
    )
    if shared:
        yield f"a program finds the host's environment: {', '.join(shared)}"
    if 0 in found["users"][0]:
        yield "a program runs as root"
    if found["files"]["/dev/shm"] or found["files"]["/tmp"]:
        yield f"a program finds files of others: {found['files']}"


async def check_processes_end(sandbox: Sandbox) -> AsyncIterator[str]:
    """What a program started is gone when its result is there."""
    for ending in ("", "os._exit(3)", "os.abort()", "while True: pass"):
        mark = new_mark()
        code = f"{marking(mark)}\nimport os, time\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n"
        code += f"        time.sleep(1000)\n{ending}"
        result = await sandbox.run(code, limits=Limits(wall_s=0.5 if "while" in ending else 10.0))
        if left := marked_processes(mark):
            yield f"after {ending or 'a plain end'!r} ({result.ended}), {len(left)} processes still run"
