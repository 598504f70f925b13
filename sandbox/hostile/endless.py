"""Programs that want to take time for ever."""

from ..limits import Limits
from .attack import attack
from .program import ENDLESS, TIMEOUT, HostileProgram, Outcome, python, shell

_CPU = Limits(wall_s=30.0, cpu_s=1.0)
_CPU_TIMEOUT = Outcome("timeout", within_s=20.0)
_SAID_FIRST = Outcome("timeout", out=b"begun\n")


def _endless(name: str, code: str, *outcomes: Outcome, limits: Limits = ENDLESS) -> HostileProgram:
    return python(name, "time", code, *(outcomes or (TIMEOUT,)), limits=limits)


PROGRAMS = (
    _endless("loops", "while True: pass"),
    _endless("sleeps", "import time; time.sleep(1e6)"),
    _endless("says something, then loops", "print('begun', flush=True)\nwhile True: pass", _SAID_FIRST),
    _endless(
        "ignores signals",
        """
        import signal
        for number in set(range(1, 65)) - {9, 19, 32, 33}:
            signal.signal(number, signal.SIG_IGN)
        while True: pass
        """,
    ),
    _endless(
        "blocks signals",
        """
        import signal, time
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        while True: time.sleep(100)
        """,
    ),
    _endless(
        "catches everything",
        """
        import time
        while True:
            try: time.sleep(100)
            except BaseException: pass
        """,
    ),
    _endless(
        "loops in finally",
        """
        try:
            while True: pass
        finally:
            while True: pass
        """,
    ),
    _endless(
        "thread that never ends",
        """
        import threading, time
        threading.Thread(target=lambda: time.sleep(1e6)).start()
        print("begun", flush=True)
        """,
        _SAID_FIRST,
    ),
    _endless("exit handler that never ends", "import atexit, time; atexit.register(time.sleep, 1e6); print('begun')"),
    _endless("deadlock", "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"),
    _endless("regular expression", "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')"),
    _endless("power that never ends, in C", "print(len(str(9 ** 9 ** 9)))"),
    _endless("stops itself", "import os; os.kill(os.getpid(), 19)"),
    _endless(
        "stops all others",
        """
        import os, signal
        try: os.kill(-1, signal.SIGSTOP)
        except OSError: pass
        while True: pass
        """,
    ),
    _endless("waits at a FIFO", "import os; os.mkfifo('pipe'); open('pipe')"),
    _endless("reads its own pipe", "import os; os.read(os.pipe()[0], 1)"),
    _endless("waits for an endless child", "import os\nif os.fork() == 0:\n    while True: pass\nos.wait()"),
    _endless(
        "storm of timer signals",
        """
        import signal
        signal.signal(signal.SIGPROF, lambda *_: None)
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_PROF, 1e-5, 1e-5)
        signal.setitimer(signal.ITIMER_REAL, 1e-5, 1e-5)
        while True: pass
        """,
    ),
    _endless(
        "children take turns below the CPU limit",
        """
        import os, time
        while True:
            if os.fork() == 0:
                while time.process_time() < 0.1: pass
                os._exit(0)
            os.wait()
        """,
    ),
    _endless(
        "threads that spin",
        """
        import threading
        def spin():
            while True: pass
        for _ in range(8): threading.Thread(target=spin).start()
        """,
    ),
    _endless("compiles without end", "while True: compile('x = 1', 'x', 'exec')"),
    _endless("import that never ends", "open('slow.py', 'w').write('while True: pass')\nexec(open('slow.py').read())"),
    _endless("descriptor storm", "import os\nwhile True: os.close(os.dup(1))"),
    _endless("CPU limit", "while True: pass", _CPU_TIMEOUT, limits=_CPU),
    _endless(
        "CPU limit, signal ignored",
        "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        _CPU_TIMEOUT,
        limits=_CPU,
    ),
    _endless(
        "CPU limit raised by itself",
        """
        import resource
        try: resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except (ValueError, OSError): pass
        while True: pass
        """,
        _CPU_TIMEOUT,
        limits=_CPU,
    ),
    python("reads stdin that never comes", "time", "print(repr(input()))", Outcome("nonzero", 1, err_has=b"EOFError")),
    shell("shell loop", "time", "while :; do :; done", TIMEOUT, limits=ENDLESS),
    shell(
        "shell that traps", "time", "trap '' TERM INT HUP QUIT; while :; do sleep 100; done", TIMEOUT, limits=ENDLESS
    ),
    shell("exec into yes", "time", "exec yes > /dev/null", TIMEOUT, limits=ENDLESS),
    attack(
        "sets the clock",
        "time",
        """
        attempt("realtime", time.clock_settime, time.CLOCK_REALTIME, time.time())
        attempt("monotonic", time.clock_settime, time.CLOCK_MONOTONIC, 1.0)
        """,
    ),
    attack(
        "takes a higher priority",
        "time",
        """
        attempt("nice", os.setpriority, os.PRIO_PROCESS, 0, -20)
        for policy in (os.SCHED_FIFO, os.SCHED_RR):
            attempt("policy", os.sched_setscheduler, 0, policy, os.sched_param(1))
        attempt("io", call, "ioprio_set", 1, 0, 1 << 13)
        """,
    ),
)
