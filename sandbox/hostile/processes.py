"""Programs that make processes without end, escape from their group, or turn on what runs them."""

from .attack import attack
from .program import BRIEF, ENDLESS, HELD, TIMEOUT, HostileProgram, Outcome, python, shell

_BROKE_ITS_RUNNER = Outcome("killed")
_KILLED_ITSELF = Outcome("signal", signal=9)
_PARENT_DONE = Outcome("ok", out=b"parent done\n", within_s=2.0)


def _python(name: str, code: str, *outcomes: Outcome) -> HostileProgram:
    return python(name, "processes", code, *outcomes, limits=ENDLESS if TIMEOUT in outcomes else BRIEF)


PROGRAMS = (
    _python(
        "fork bomb",
        """
        import os
        while True:
            try: os.fork()
            except OSError: pass
        """,
        TIMEOUT,
    ),
    shell("fork bomb of a shell", "processes", ":(){ :|:& };: ; sleep 100", TIMEOUT, limits=ENDLESS),
    _python(
        "fork bomb whose parents leave",
        """
        import os
        for _ in range(3):
            try: os.fork()
            except OSError: pass
        while True:
            try:
                if os.fork(): os._exit(0)
            except OSError: pass
        """,
        TIMEOUT,
        Outcome("ok", within_s=2.0),
    ),
    _python(
        "thread bomb",
        """
        import os, threading, time
        count = 0
        try:
            while count < 1000:
                threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
                count += 1
        except RuntimeError: pass
        print("capped" if count < 64 else count, flush=True)
        os._exit(0)
        """,
        Outcome("ok", out=b"capped\n"),
    ),
    _python(
        "hoard of zombies",
        """
        import os
        count = 0
        try:
            while count < 1000:
                if os.fork() == 0: os._exit(0)
                count += 1
        except OSError: pass
        print("capped" if count < 64 else count)
        """,
        Outcome("ok", out=b"capped\n"),
    ),
    _python(
        "hoard of commands",
        """
        import os
        count = 0
        try:
            while count < 1000:
                os.posix_spawnp("sleep", ["sleep", "1000"], {"PATH": "/usr/bin:/bin", **os.environ})
                count += 1
        except OSError: pass
        print("capped" if count < 64 else count)
        """,
        Outcome("ok", out=b"capped\n"),
    ),
    _python(
        "quick children, one after the other",
        """
        import os
        for _ in range(300):
            if os.fork() == 0: os._exit(0)
            os.wait()
        print("all done")
        """,
        Outcome("ok", out=b"all done\n"),
    ),
    _python(
        "daemon holds stdout",
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0: time.sleep(1000)
            os._exit(0)
        print("parent done")
        """,
        _PARENT_DONE,
    ),
    _python(
        "daemon writes late",
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
            time.sleep(0.4)
            while True: os.write(1, b"late")
        print("parent done")
        """,
        _PARENT_DONE,
    ),
    _python(
        "daemons that watch each other",
        """
        import os, time
        def guard():
            while True:
                if os.fork() == 0:
                    os.setsid()
                    continue
                try: os.wait()
                except OSError: pass
        for _ in range(2):
            if os.fork() == 0: guard()
        print("parent done")
        """,
        _PARENT_DONE,
    ),
    shell(
        "nohup in a new session",
        "processes",
        "nohup setsid sleep 1000 >/dev/null 2>&1 & disown -a; echo parent done",
        _PARENT_DONE,
    ),
    _python(
        "leaves its session and group",
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
        time.sleep(1000)
        """,
        TIMEOUT,
    ),
    _python(
        "takes over as reaper of orphans",
        """
        import ctypes, os, time
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.fork() == 0:
            if os.fork() == 0: time.sleep(1000)
            os._exit(0)
        print("parent done")
        """,
        _PARENT_DONE,
    ),
    _python(
        "kills everything",
        "import contextlib, os\nwith contextlib.suppress(OSError): os.kill(-1, 9)\nprint('held')",
        HELD,
        _KILLED_ITSELF,
        _BROKE_ITS_RUNNER,
    ),
    _python("kills its group", "import os; os.kill(0, 9); print('held')", _KILLED_ITSELF, _BROKE_ITS_RUNNER),
    _python(
        "kills process after process",
        """
        import os
        for pid in [*range(2, 3000), CANARY_PID]:
            if pid != os.getpid():
                try: os.kill(pid, 9)
                except OSError: pass
        print("held")
        """,
        HELD,
        _BROKE_ITS_RUNNER,
    ),
    attack(
        "signals its init and its parent",
        "processes",
        """
        for number in sorted(set(range(1, 65)) - {32, 33}):
            for pid in {1, os.getppid()} - {0}:
                try: os.kill(pid, number)
                except OSError: pass
        """,
        _BROKE_ITS_RUNNER,
    ),
    _python(
        "stops its init, then is done",
        """
        import os
        for number in (19, 20, 21, 22):
            for pid in {1, os.getppid()} - {0}:
                try: os.kill(pid, number)
                except OSError: pass
        print("held")
        """,
        HELD,
        _BROKE_ITS_RUNNER,
    ),
    _python(
        "child kills its parent",
        """
        import os, time
        if os.fork() == 0:
            os.kill(os.getppid(), 9)
            os._exit(0)
        time.sleep(5)
        """,
        _KILLED_ITSELF,
    ),
    _python(
        "child of its parent ends well, itself badly",
        """
        import ctypes, os, time
        number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
        if ctypes.CDLL(None).syscall(number, 0x8000 | 17, 0, 0, 0, 0) == 0: os._exit(0)  # CLONE_PARENT | SIGCHLD
        time.sleep(0.2)
        os._exit(3)
        """,
        Outcome("nonzero", exit_code=3),
    ),
    _python(
        "child of its parent ends well, itself never",
        """
        import ctypes, os
        number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
        if ctypes.CDLL(None).syscall(number, 0x8000 | 17, 0, 0, 0, 0) == 0: os._exit(0)  # CLONE_PARENT | SIGCHLD
        while True: pass
        """,
        TIMEOUT,
    ),
    _python(
        "orphans end well, itself badly",
        """
        import os, time
        for _ in range(8):
            if os.fork() == 0:
                if os.fork() == 0:
                    time.sleep(0.05)
                    os._exit(0)
                os._exit(0)
            os.wait()
        time.sleep(0.2)
        os._exit(5)
        """,
        Outcome("nonzero", exit_code=5),
    ),
    attack(
        "waits for others' children",
        "processes",
        """
        attempt("any", os.waitpid, -1, os.WNOHANG)
        attempt("any of any kind", os.waitpid, -1, 0x40000000 | os.WNOHANG)  # __WALL
        """,
    ),
)
