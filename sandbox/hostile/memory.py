"""Programs that want all the memory, or a broken stack."""

from .attack import attack
from .program import OUT_OF_MEMORY, SMALL, TIMEOUT, HostileProgram, Outcome, python

_SEGMENTATION_FAULT = Outcome("signal", signal=11)
_REFUSED = Outcome("nonzero", exit_code=1, err_has=b"Error")
_BOUNDED = Outcome("ok", out=b"bounded\n")
_LIMITS = SMALL


def _hungry(name: str, code: str, *outcomes: Outcome) -> HostileProgram:
    return python(name, "memory", code, *(outcomes or OUT_OF_MEMORY), limits=_LIMITS)


PROGRAMS = (
    _hungry("one huge array", "x = bytearray(1 << 34)"),
    _hungry("many arrays", "x = []\nwhile True: x.append(bytearray(1 << 20))"),
    _hungry("huge text", "x = 'x' * 10**11"),
    _hungry("doubling list", "x = [0]\nwhile True: x += x"),
    _hungry(
        "growing table",
        "x = {}\nwhile True: x[len(x)] = str(len(x)) * 100",
        Outcome("memory"),
        Outcome("nonzero", exit_code=1),  # there may be no memory to say why
    ),
    _hungry("huge number", "x = 1 << (1 << 36)"),
    _hungry(
        "text that unpacks without end",
        """
        import zlib
        packed = zlib.compressobj(1)
        bomb = b"".join(packed.compress(bytes(1 << 24)) for _ in range(16)) + packed.flush()
        x = zlib.decompress(bomb)
        """,
    ),
    _hungry("maps 64 GiB", "import mmap; mmap.mmap(-1, 1 << 36)", *OUT_OF_MEMORY, _REFUSED),
    _hungry(
        "maps and touches",
        """
        import mmap
        maps = []
        while True:
            maps.append(mmap.mmap(-1, 1 << 22))
            for page in range(0, 1 << 22, 4096): maps[-1][page] = 1
        """,
        *OUT_OF_MEMORY,
        _REFUSED,
    ),
    _hungry(
        "moves the break",
        """
        import ctypes
        libc = ctypes.CDLL(None)
        libc.sbrk.restype = ctypes.c_ssize_t
        for _ in range(4096):
            place = libc.sbrk(ctypes.c_ssize_t(1 << 20))
            if place == -1: raise MemoryError
            ctypes.memset(place, 1, 1 << 20)
        """,
    ),
    _hungry(
        "allocates in C",
        """
        import ctypes
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        libc.malloc.argtypes = [ctypes.c_size_t]
        for _ in range(4096):
            place = libc.malloc(1 << 20)
            if not place: raise MemoryError
            ctypes.memset(place, 1, 1 << 20)
        """,
    ),
    _hungry(
        "many children",
        """
        import os
        for _ in range(16):
            if os.fork() == 0:
                try: x = [bytearray(b"1") * (1 << 20) for _ in range(60)]
                finally: os._exit(0)
        try:
            while True: os.wait()
        except ChildProcessError: print("bounded")
        """,
        Outcome("memory"),
        _BOUNDED,
    ),
    _hungry(
        "file that lies in memory",
        """
        import os
        file, size = os.memfd_create("x"), 0
        try:
            while size < 1 << 32: size += os.write(file, b"x" * (1 << 20))
        except OSError: pass
        print("bounded" if size <= 256 << 20 else size)
        """,
        Outcome("memory"),
        Outcome("signal", signal=25),
        _BOUNDED,
        _REFUSED,
    ),
    _hungry(
        "shared memory segments",
        """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmat.restype = ctypes.c_ssize_t
        size = 0
        for _ in range(4096):
            segment = libc.shmget(0, ctypes.c_size_t(1 << 22), 0o1600)
            place = -1 if segment < 0 else libc.shmat(segment, None, 0)
            if place == -1: break
            ctypes.memset(place, 1, 1 << 22)
            size += 1 << 22
        print("bounded" if size <= 256 << 20 else size)
        """,
        Outcome("memory"),
        _BOUNDED,
    ),
    _hungry(
        "full pipes",
        """
        import fcntl, os
        size = 0
        try:
            while True:
                reader, writer = os.pipe()
                os.set_blocking(writer, False)
                try: fcntl.fcntl(writer, 1031, 1 << 20)  # F_SETPIPE_SZ
                except OSError: pass
                try:
                    while True: size += os.write(writer, bytes(4096))
                except BlockingIOError: pass
        except OSError: pass
        print("bounded" if size <= 256 << 20 else size)
        """,
        Outcome("memory"),
        _BOUNDED,
    ),
    _hungry(
        "full sockets",
        """
        import socket
        pairs, size = [], 0
        try:
            while True:
                pairs.append(socket.socketpair())
                pairs[-1][0].setblocking(False)
                try:
                    while True: size += pairs[-1][0].send(bytes(1 << 16))
                except BlockingIOError: pass
        except OSError: pass
        print("bounded" if size <= 256 << 20 else size)
        """,
        Outcome("memory"),
        _BOUNDED,
    ),
    _hungry(
        "pipes without end", "import os\nwhile True: os.pipe()", Outcome("nonzero", 1, err_has=b"Too many open files")
    ),
    _hungry(
        "thread with a huge stack",
        """
        import threading
        threading.stack_size(1 << 33)
        threading.Thread(target=print).start()
        """,
        *OUT_OF_MEMORY,
        _REFUSED,
    ),
    _hungry(
        "endless recursion",
        "import sys; sys.setrecursionlimit(10**6)\ndef f(n): return f(n + 1)\nf(0)",
        Outcome("nonzero", exit_code=1),
        TIMEOUT,  # its traceback is long
        _SEGMENTATION_FAULT,
        *OUT_OF_MEMORY,
    ),
    _hungry(
        "deep nesting shown",
        """
        import sys
        sys.setrecursionlimit(10**7)
        x = []
        for _ in range(10**6): x = [x]
        repr(x)
        """,
        Outcome("nonzero", exit_code=1),
        _SEGMENTATION_FAULT,
        *OUT_OF_MEMORY,
    ),
    _hungry(
        "stack overflow in C",
        """
        import ctypes, sys
        sys.setrecursionlimit(10**7)
        def call(): again()
        again = ctypes.CFUNCTYPE(None)(call)
        again()
        """,
        _SEGMENTATION_FAULT,
        Outcome("nonzero", exit_code=1),
        Outcome("ok", err_has=b"RecursionError"),
        *OUT_OF_MEMORY,
    ),
    _hungry(
        "nested source text",
        "eval('(' * 10**6)",
        Outcome("nonzero", exit_code=1),
        _SEGMENTATION_FAULT,
        Outcome("memory"),
    ),
    _hungry("reads at 0", "import ctypes; ctypes.string_at(0)", _SEGMENTATION_FAULT),
    _hungry(
        "reads at 0 in a thread",
        "import ctypes, threading; threading.Thread(target=ctypes.string_at, args=(0,)).start()",
        _SEGMENTATION_FAULT,
    ),
    _hungry(
        "writes to code",
        "import ctypes; ctypes.memset(ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p), 0, 1)",
        _SEGMENTATION_FAULT,
    ),
    attack(
        "is to be spared when memory runs out",
        "memory",
        """
        def spare():
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("-1000")
        attempt("oom_score_adj", spare)
        """,
    ),
    python(
        "reserves much, touches slowly",
        "memory",
        """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_ssize_t
        place = libc.mmap(None, ctypes.c_size_t(1 << 40), 3, 0x4022, -1, ctypes.c_long(0))
        if place == -1: raise MemoryError
        for page in range(0, 1 << 40, 4096): ctypes.memset(place + page, 1, 1)
        """,
        *OUT_OF_MEMORY,
        TIMEOUT,
        limits=_LIMITS,
    ),
)
