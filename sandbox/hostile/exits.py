"""Programs that end in every way there is."""

from .program import ENDLESS, TIMEOUT, HostileProgram, Outcome, python, shell


def _exit(name: str, code: str, *outcomes: Outcome) -> HostileProgram:
    return python(name, "exit", code, *outcomes)


def _ok(name: str, code: str, out: bytes | None = None) -> HostileProgram:
    return _exit(name, code, Outcome("ok", exit_code=0, out=out))


def _code(name: str, exit_code: int, code: str, err_has: bytes | None = None) -> HostileProgram:
    return _exit(name, code, Outcome("nonzero", exit_code=exit_code, err_has=err_has))


def _signal(name: str, number: int, code: str) -> HostileProgram:
    return _exit(name, code, Outcome("signal", signal=number))


PROGRAMS = (
    _ok("exits early", "import sys; print('x'); sys.exit(0); print('y')", b"x\n"),
    _ok("exits at once", "import os; os._exit(0)", b""),
    _ok("exits by None", "raise SystemExit", b""),
    _code("exits by a message", 1, "raise SystemExit('message')", b"message"),
    _code("exits by 255", 255, "import sys; sys.exit(255)"),
    _code("exits by -1", 255, "import sys; sys.exit(-1)"),
    _ok("exits by 256", "import os; os._exit(256 & 0xff)"),
    _code("exits by 139, as if by a signal", 139, "import os; os._exit(139)"),
    _code("exits in an exit handler", 7, "import atexit, os; atexit.register(os._exit, 7)"),
    _code(
        "exits in a thread",
        9,
        "import os, threading, time; threading.Thread(target=os._exit, args=(9,)).start(); time.sleep(5)",
    ),
    _ok(
        "error in a thread",
        "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join(); print('x')",
        b"x\n",
    ),
    _signal("aborts", 6, "import os; os.abort()"),
    _signal("kills itself", 9, "import os; os.kill(os.getpid(), 9)"),
    _signal("terminates itself", 15, "import os; os.kill(os.getpid(), 15)"),
    _signal("alarm", 14, "import signal, time; signal.alarm(1); time.sleep(5)"),
    _signal("bad system call", 31, "import os; os.kill(os.getpid(), 31)"),
    _signal("last signal of all", 64, "import os; os.kill(os.getpid(), 64)"),
    _signal(
        "broken pipe",
        13,
        "import os, signal; signal.signal(13, signal.SIG_DFL); r, w = os.pipe(); os.close(r); os.write(w, b'x')",
    ),
    _exit(
        "interrupts itself",
        "import os, time; os.kill(os.getpid(), 2); time.sleep(1)",
        Outcome("signal", signal=2),
        Outcome("nonzero", err_has=b"KeyboardInterrupt"),
    ),
    _code("syntax error", 1, "def f(:", b"SyntaxError"),
    _code("indentation error", 1, "if True:\nx = 1", b"IndentationError"),
    _code("error with its line", 1, "x = 1\n\n\ndef f():\n    return missing_name\nf()", b"missing_name"),
    _code("unknown module", 1, "import no_such_module", b"ModuleNotFoundError"),
    _exit(
        "patches everything, then fails",
        """
        import builtins, sys
        builtins.print = lambda *_: None
        builtins.compile = builtins.exec = None
        sys.excepthook = lambda *_: None
        sys.exit = lambda *_: None
        sys.modules.clear()
        1 / 0
        """,
        Outcome("nonzero", exit_code=1),
    ),
    _exit(
        "makes every exit a good one",
        """
        import os, sys
        good = os._exit
        os._exit = sys.exit = lambda *_: good(0)
        sys.excepthook = lambda *_: good(0)
        raise ValueError
        """,
        Outcome("ok"),
        Outcome("nonzero", exit_code=1),
    ),
    _exit(
        "hook that fails",
        "import sys\ndef hook(*_): raise SystemExit(0)\nsys.excepthook = hook\n1 / 0",
        Outcome("nonzero"),
        Outcome("ok"),
    ),
    _ok("becomes another program", "import os; os.execv('/bin/sh', ['sh', '-c', 'echo other'])", b"other\n"),
    _code("becomes a program that fails", 6, "import os; os.execv('/bin/sh', ['sh', '-c', 'exit 6'])"),
    _code("becomes what is not there", 1, "import os; os.execv('/no/such', ['x'])", b"FileNotFoundError"),
    _code("both sides of a fork fail", 3, "import os, sys\nif os.fork() == 0: sys.exit(0)\nos.wait(); sys.exit(3)"),
    _exit(
        "both sides of a fork go on",
        "import os\npid = os.fork()\nif pid: os.wait()\nprint('side')",
        Outcome("ok", out=b"side\nside\n"),
    ),
    _exit(
        "main thread ends alone",
        """
        import ctypes, os, threading, time
        def end():
            time.sleep(0.2)
            os._exit(5)
        threading.Thread(target=end).start()
        number = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
        ctypes.CDLL(None).syscall(number, 0)
        """,
        Outcome("nonzero", exit_code=5),
    ),
    python(
        "main thread ends alone, another never",
        "exit",
        """
        import ctypes, os, threading
        def spin():
            while True: pass
        threading.Thread(target=spin).start()
        number = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
        ctypes.CDLL(None).syscall(number, 0)
        """,
        TIMEOUT,
        limits=ENDLESS,
    ),
    _exit(
        "ends while its objects refuse to",
        """
        import sys
        class Stay:
            def __del__(self):
                global x
                x = self
                raise ValueError
        x = Stay()
        sys.exit(2)
        """,
        Outcome("nonzero", exit_code=2),
    ),
    _exit(
        "breaks its interpreter",
        "import ctypes, sys\nctypes.memset(id(type) , 255, 64)\n[].append(type)\ntype(1)",
        Outcome("signal"),
        Outcome("nonzero"),
    ),
    _exit("exit code of a shell's signal", "import os; os._exit(128 + 9)", Outcome("nonzero", exit_code=137)),
    shell("shell's last command", "exit", "true; false; exit 12", Outcome("nonzero", exit_code=12)),
    shell("shell kills itself", "exit", "kill -KILL $$", Outcome("signal", signal=9)),
    shell("no such command", "exit", "no_such_command_at_all", Outcome("nonzero", exit_code=127)),
    shell(
        "child of a shell dies by a signal",
        "exit",
        "bash -c 'kill -SEGV $$'; exit $?",
        Outcome("nonzero", exit_code=139),
    ),
    HostileProgram(
        "command that is not there",
        "exit",
        None,
        (Outcome("nonzero", exit_code=127), Outcome("nonzero", exit_code=126)),
        argv=("/no/such/command",),
    ),
    HostileProgram(
        "command that may not be run",
        "exit",
        None,
        (Outcome("nonzero", exit_code=126), Outcome("nonzero", exit_code=127)),
        argv=("/etc/passwd",),
    ),
)
