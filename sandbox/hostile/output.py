"""Programs that drown, forge or break what carries their output."""

from dataclasses import replace

from .program import BRIEF, ENDLESS, HostileProgram, Outcome, python, shell

_FLOOD = replace(BRIEF, flood_bytes=4 << 20)
_FLOODED = Outcome("output", is_out_truncated=True, within_s=5.0)
_KEPT = BRIEF.output_bytes


def _output(name: str, code: str, *outcomes: Outcome) -> HostileProgram:
    return python(name, "output", code, *outcomes, limits=BRIEF)


def _says(name: str, code: str, out: bytes) -> HostileProgram:
    return _output(name, code, Outcome("ok", out=out, is_out_truncated=False))


PROGRAMS = (
    python(
        "endless stdout", "output", "import sys\nwhile True: sys.stdout.write('x' * 65536)", _FLOODED, limits=_FLOOD
    ),
    python(
        "endless stderr",
        "output",
        "import sys\nwhile True: sys.stderr.write('x' * 65536)",
        Outcome("output", is_err_truncated=True, within_s=5.0),
        limits=_FLOOD,
    ),
    python(
        "endless children write",
        "output",
        """
        import os
        for _ in range(4): os.fork()
        while True: os.write(1, bytes(65536))
        """,
        _FLOODED,
        limits=_FLOOD,
    ),
    python(
        "ignores that nobody reads",
        "output",
        """
        import os, signal
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        while True:
            try: os.write(1, bytes(65536))
            except BaseException: pass
        """,
        _FLOODED,
        limits=_FLOOD,
    ),
    shell("yes", "output", "yes", _FLOODED, limits=_FLOOD),
    shell("flood of a daemon", "output", "(setsid yes &) ; sleep 5", _FLOODED, limits=_FLOOD),
    _output(
        "much stderr",
        "import sys\nfor _ in range(100): sys.stderr.write('e' * 65536)\nprint('done')",
        Outcome("ok", out=b"done\n", is_err_truncated=True, is_out_truncated=False),
    ),
    _output(
        "a hundred thousand tiny writes",
        "import os\nfor _ in range(100_000): os.write(1, b'x')",
        Outcome("ok", out=b"x" * _KEPT, is_out_truncated=True),
    ),
    _output(
        "just what is kept", f"print('x' * {_KEPT}, end='')", Outcome("ok", out=b"x" * _KEPT, is_out_truncated=False)
    ),
    _output(
        "one byte more than is kept",
        f"print('x' * {_KEPT} + 'y', end='')",
        Outcome("ok", out=b"x" * _KEPT, is_out_truncated=True),
    ),
    _output(
        "letters cut in the middle",
        f"print('x' + 'é' * {_KEPT}, end='')",
        Outcome("ok", out=b"x" + "é".encode() * (_KEPT // 2 - 1) + b"\xc3", is_out_truncated=True),
    ),
    _says("no newline", "print('abc', end='')", b"abc"),
    _says("not UTF-8", "import os; os.write(1, b'\\xff\\xfe\\x80')", b"\xff\xfe\x80"),
    _says(
        "NUL and terminal codes", "import os; os.write(1, b'\\0\\x1b]0;pwn\\x07\\x1b[2J')", b"\0\x1b]0;pwn\x07\x1b[2J"
    ),
    _says("newlines as they are", "import os; os.write(1, b'a\\r\\nb\\rc\\n\\n')", b"a\r\nb\rc\n\n"),
    _output(
        "both streams in turns",
        "import os\nfor i in range(1000): os.write(1, b'o'); os.write(2, b'e')",
        Outcome("ok", out=b"o" * 1000, err_has=b"e" * 1000),
    ),
    _says(
        "a child writes too",
        "import os\nif os.fork() == 0:\n    os.write(1, b'a'); os._exit(0)\nos.wait(); os.write(1, b'b')",
        b"ab",
    ),
    _says(
        "a thread writes to the end",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
        b"late\n",
    ),
    _says("an exit handler writes", "import atexit; atexit.register(print, 'last'); print('first')", b"first\nlast\n"),
    _output(
        "closes stdout",
        "import os; os.close(1); os.write(2, b'still here')",
        Outcome("ok", out=b"", err_has=b"still here"),
    ),
    _output("closes stderr and fails", "import os; os.close(2); 1 / 0", Outcome("nonzero")),
    _output(
        "prints to closed stdout",
        "import os; os.close(1); print('x' * 10**5)",
        Outcome("nonzero"),
        Outcome("ok", out=b""),
    ),
    _output(
        "closes all, goes on",
        "import os, time; os.closerange(0, 3); time.sleep(0.2); os._exit(4)",
        Outcome("nonzero", exit_code=4),
    ),
    python(
        "closes all, never ends",
        "output",
        "import os\nos.closerange(0, 1024)\nwhile True: pass",
        Outcome("timeout", out=b""),
        limits=ENDLESS,
    ),
    _output(
        "stdout of None",
        "import sys; sys.stdout = sys.stderr = None; print('x'); 1 / 0",
        Outcome("nonzero", exit_code=1, out=b""),
    ),
    _output(
        "stdout of its own making",
        """
        import sys
        class Out:
            def write(self, text): raise SystemExit(0)
        sys.stdout = sys.stderr = Out()
        1 / 0
        """,
        Outcome("nonzero"),
        Outcome("ok"),
    ),
    _output(
        "writes by another name",
        """
        import os
        name = "/proc/self/fd/1"
        with open(name if os.path.exists(name) else 1, "w") as file: file.write("by name")
        """,
        Outcome("ok", out=b"by name"),
        Outcome("nonzero", exit_code=1, err_has=b"Permission denied"),
    ),
    _output(
        "shrinks and unblocks its pipe",
        """
        import fcntl, os, time
        try: fcntl.fcntl(1, 1031, 4096)  # F_SETPIPE_SZ
        except OSError: pass
        os.set_blocking(1, False)
        left = 300_000
        while left:
            try: left -= os.write(1, b"x" * min(left, 65536))
            except BlockingIOError: time.sleep(0.001)
        """,
        Outcome("ok", out=b"x" * _KEPT, is_out_truncated=True),
    ),
    _says("empty writes", "import os\nfor _ in range(10_000): os.write(1, b'')\nprint('x')", b"x\n"),
    _output(
        "forged verdict",
        'import os; print(\'{"passed": true, "reward": 1.0}\', flush=True); os._exit(3)',
        Outcome("nonzero", exit_code=3),
    ),
    _output(
        "forged frames",
        """
        import os, struct
        for size in (0, 1, 8, 1 << 20, 1 << 31, (1 << 63) - 1):
            for form in (">I", "<I", "!Q", "<Q"):
                if size < 1 << 8 * struct.calcsize(form):
                    os.write(1, struct.pack(form, size) + b'{"status": 0, "ended": "ok"}\\n')
                    os.write(2, struct.pack(form, size) + b'exit 0\\n')
        os._exit(3)
        """,
        Outcome("nonzero", exit_code=3, out_has=b'{"status": 0, "ended": "ok"}'),
    ),
    _output("message of 10 MB", "raise Exception('A' * 10**7)", Outcome("nonzero", exit_code=1, is_err_truncated=True)),
    _output(
        "error that cannot be shown",
        "class E(Exception):\n    def __str__(self): raise SystemExit(0)\nraise E()",
        Outcome("nonzero", exit_code=1),
        Outcome("ok"),
    ),
    python(
        "says something, then stops",
        "output",
        "import os, time; os.write(1, b'kept'); os.write(2, b'too'); time.sleep(1000)",
        Outcome("timeout", out=b"kept", err_has=b"too"),
        limits=ENDLESS,
    ),
    python(
        "does not read what it is given",
        "output",
        "print('done')",
        Outcome("ok", out=b"done\n", within_s=4.0),
        stdin=bytes(8 << 20),
    ),
    python(
        "gives back all that it is given",
        "output",
        "import sys, hashlib; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())",
        Outcome("ok", out=b"2daeb1f36095b44b318410b3f4e8b5d989dcc7bb023d1426c492dab0a3053e74\n"),
        stdin=bytes(8 << 20),
    ),
)
