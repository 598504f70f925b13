"""Programs that look into what runs them."""

from .attack import attack
from .program import ENDLESS, HELD, HostileProgram, Outcome, python

_BROKE_ITS_RUNNER = Outcome("killed")


def _attack(name: str, code: str, *others: Outcome) -> HostileProgram:
    return attack(name, "introspection", code, *others)


PROGRAMS = (
    _attack(
        "traces others",
        """
        for pid in others():
            attempt(f"attach {pid}", call, "ptrace", 16, pid, 0, 0)
            attempt(f"seize {pid}", call, "ptrace", 0x4206, pid, 0, 0)
        """,
    ),
    _attack(
        "child traces its parent's parent",
        """
        grandparent = os.getppid()
        reader, writer = os.pipe()
        if os.fork() == 0:
            try: call("ptrace", 16, grandparent, 0, 0)
            except OSError: os._exit(0)
            os.write(writer, b"attached")
            os._exit(1)
        os.wait()
        os.close(writer)
        if grandparent and os.read(reader, 100):
            loot.append("attached")
        """,
    ),
    _attack(
        "reads and writes others' memory by call",
        """
        class Range(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
        buffer = ctypes.create_string_buffer(16)
        here = Range(ctypes.addressof(buffer), 16)
        for pid in others():
            for name in ("process_vm_readv", "process_vm_writev"):
                attempt(f"{name} {pid}", call, name, pid, ctypes.byref(here), 1, ctypes.byref(here), 1, 0)
        """,
    ),
    _attack(
        "opens others' memory",
        """
        for pid in others():
            attempt(f"read {pid}", open, f"/proc/{pid}/mem", "rb")
            attempt(f"write {pid}", open, f"/proc/{pid}/mem", "r+b")
        """,
    ),
    _attack(
        "reads others' environment and maps",
        """
        for pid in others():
            for name in ("environ", "maps", "auxv", "smaps", "stack", "syscall", "pagemap"):
                attempt(f"{name} of {pid}", read, f"/proc/{pid}/{name}")
        """,
    ),
    _attack(
        "takes others' files",
        """
        for pid in others():
            attempt(f"files of {pid}", os.listdir, f"/proc/{pid}/fd")
            for number in range(64):
                attempt(f"file {number} of {pid}", os.open, f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
        """,
    ),
    _attack(
        "takes others' descriptors",
        """
        for pid in others():
            for number in range(64):
                attempt(f"descriptor {number} of {pid}", lambda: call("pidfd_getfd", os.pidfd_open(pid), number, 0))
        """,
    ),
    _attack(
        "goes through others' roots",
        """
        for pid in others():
            for name in ("root", "cwd"):
                attempt(f"{name} of {pid}", os.listdir, f"/proc/{pid}/{name}/")
            attempt(f"secret by {pid}", read, f"/proc/{pid}/root{CANARY_FILE}")
        """,
    ),
    _attack(
        "compares with others",
        """
        for pid in others():
            attempt(f"kcmp {pid}", call, "kcmp", os.getpid(), pid, 0, 0, 0)
        """,
    ),
    _attack(
        "patches its own memory",  # may work: it is its own
        """
        buffer = ctypes.create_string_buffer(b"AAAA")
        try:
            with open("/proc/self/mem", "r+b") as file:
                file.seek(ctypes.addressof(buffer))
                file.write(b"BBBB")
        except OSError: pass
        if buffer.value not in (b"AAAA", b"BBBB"):
            loot.append(buffer.value)
        """,
    ),
    _attack(
        "processes of the host",
        """
        attempt("host's process", os.kill, CANARY_PID, 0)
        attempt("host's command", read, f"/proc/{CANARY_PID}/cmdline")
        if len(others()) > 8:
            loot.append(others())
        """,
    ),
    _attack(
        "inherited descriptors",
        """
        for number in range(3, 1024):
            attempt(number, os.fstat, number)
        """,
    ),
    _attack(
        "guesses control descriptors",
        """
        for number in range(3, 1024):
            attempt(number, os.write, number, b'{"status": 0, "passed": true}\\n')
            attempt(number, socket.socket, fileno=number)
        """,
    ),
    _attack(
        "sockets as standard streams",
        """
        import stat
        for number in (0, 1, 2):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                loot.append(f"{number} is a socket, which carries descriptors too")
        """,
    ),
    _attack(
        "environment",
        """
        for name, value in os.environ.items():
            if "SECRET" in name or "TOKEN" in name or value == CANARY_TERCES[::-1]:
                loot.append((name, value))
        """,
    ),
    _attack(
        "secret left in its own memory",
        """
        # The first half alone is looked for; the whole stands in this program in no other way than backwards.
        half = CANARY_TERCES[16:][::-1].encode()
        with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb") as memory:
            for line in maps:
                span, rights = line.split()[:2]
                start, end = (int(place, 16) for place in span.split("-"))
                if rights[0] != "r" or end - start > 1 << 28 or start >= 1 << 63:
                    continue
                try:
                    memory.seek(start)
                    content = memory.read(end - start)
                except OSError: continue
                at = content.find(half)
                while at >= 0:
                    if content[at + 16 : at + 32][::-1] == CANARY_TERCES[:16].encode():
                        loot.append((hex(start + at), line.strip()))
                    at = content.find(half, at + 1)
                del content
        """,
        Outcome("nonzero", exit_code=1, err_has=b"No such file"),  # there may be no /proc
        Outcome("nonzero", exit_code=1, err_has=b"Permission denied"),
    ),
    _attack(
        "frames and objects of what runs it",
        """
        import gc
        frame = sys._getframe()
        while frame:
            for name, value in [*frame.f_locals.items(), *frame.f_globals.items()]:
                if isinstance(value, str) and value == CANARY_TERCES[::-1]:
                    loot.append(name)
            frame = frame.f_back
        for value in gc.get_objects():
            if type(value).__name__ == "socket":
                attempt(repr(value), lambda: os.fstat(value.fileno()))
        """,
    ),
    _attack(
        "interrupts its runner by limits of its files",
        """
        import fcntl
        for number in (0, 1, 2):
            for pid in {1, os.getppid()} - {0}:
                try:
                    fcntl.fcntl(number, fcntl.F_SETOWN, pid)
                    fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
                except OSError: pass
            fcntl.fcntl(number, fcntl.F_SETFL, 0)
        """,
        _BROKE_ITS_RUNNER,
    ),
    python(
        "rewrites its runner in Python",
        "introspection",
        """
        import builtins, os, sys, threading
        frame = sys._getframe().f_back
        while frame:
            for name in list(frame.f_globals):
                if callable(frame.f_globals[name]) and not name.startswith("__"):
                    frame.f_globals[name] = lambda *_, **__: None
            frame = frame.f_back
        os._exit = os.write = os.kill = lambda *_: None
        print("held", flush=True)
        while True: pass
        """,
        Outcome("timeout", out=b"held\n"),
        limits=ENDLESS,
    ),
    python(
        "tracing and auditing itself",
        "introspection",
        """
        import sys
        sys.addaudithook(lambda *_: None)
        sys.settrace(lambda *_: None)
        sys.setprofile(lambda *_: None)
        print("held")
        """,
        HELD,
    ),
)
