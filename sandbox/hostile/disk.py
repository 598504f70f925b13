"""Programs that fill what they may write to: with bytes, files, names, or the promise of bytes."""

from .attack import attack
from .program import ENDLESS, SMALL, TIMEOUT, HostileProgram, Outcome, python, shell

_FULL = (Outcome("nonzero", exit_code=1, err_has=b"OSError"), Outcome("memory"), Outcome("signal", signal=25))
_BOUNDED = Outcome("ok", out=b"bounded\n")
_MOST_BYTES = SMALL.disk_bytes * 5 // 4


def _fill(name: str, code: str, *outcomes: Outcome) -> HostileProgram:
    return python(name, "filesystem", code, *(outcomes or _FULL), limits=SMALL)


PROGRAMS = (
    _fill("one endless file", "with open('big', 'wb', 0) as f:\n    while True: f.write(bytes(1 << 20))"),
    _fill(
        "many files",
        "for i in range(10000): open(f'{i}', 'wb', 0).write(b'x' * (1 << 20)); open(f'{i}').read(1)[0]",
        *_FULL,
        Outcome("nonzero", 1),
    ),
    _fill(
        "every writable place together",
        f"""
        size = 0
        for folder in ("/box", "/tmp", "/dev/shm", "/var/tmp", "/run"):
            try:
                with open(folder + "/big", "wb", 0) as file:
                    while size < 1 << 30: size += file.write(b"x" * (1 << 18))
            except OSError: pass
        print("bounded" if size <= {_MOST_BYTES} else size)
        """,
        _BOUNDED,
        Outcome("memory"),
    ),
    _fill("sparse file of 1 TiB", "open('s', 'wb').truncate(1 << 40)\nopen('s', 'r+b').truncate(1 << 62)"),
    _fill("promised bytes", "import os; os.posix_fallocate(os.open('s', os.O_CREAT | os.O_RDWR), 0, 1 << 30)"),
    _fill("seeks far, writes little", "f = open('s', 'wb', 0)\nfor i in range(40, 63): f.seek(1 << i); f.write(b'x')"),
    _fill(
        "unnamed and removed files",
        f"""
        import os
        size, files = 0, []
        try:
            while size < 1 << 30:
                files.append(os.open("x", os.O_CREAT | os.O_RDWR))
                os.unlink("x")
                size += os.write(files[-1], b"x" * (1 << 20))
        except OSError: pass
        print("bounded" if size <= {_MOST_BYTES} else size)
        """,
        _BOUNDED,
        Outcome("memory"),
    ),
    _fill(
        "file written through a mapping",
        f"""
        import mmap, os
        file = os.open("m", os.O_CREAT | os.O_RDWR)
        os.ftruncate(file, {SMALL.disk_bytes} * 4)
        memory = mmap.mmap(file, {SMALL.disk_bytes} * 4)
        for page in range(0, len(memory), 4096): memory[page] = 1
        print("filled")
        """,
        Outcome("signal", signal=7),
        *_FULL,
    ),
    _fill(
        "a million files",
        f"""
        count = 0
        try:
            while count < 10**6:
                open(f"f{{count}}", "w").close()
                count += 1
        except OSError: pass
        print("bounded" if count <= {SMALL.num_inodes} else count)
        """,
        _BOUNDED,
    ),
    _fill(
        "a million links to one file",
        f"""
        import os
        open("one", "w").close()
        count = 0
        try:
            while count < 10**6:
                os.link("one", f"l{{count}}")
                count += 1
        except OSError: pass
        print("bounded" if count <= {SMALL.num_inodes} else count)
        """,
        _BOUNDED,
    ),
    _fill(
        "a million long symbolic links",
        f"""
        import os
        count = 0
        try:
            while count < 10**6:
                os.symlink("x" * 4000, f"s{{count}}")
                count += 1
        except OSError: pass
        print("bounded" if count <= {SMALL.num_inodes} else count)
        """,
        _BOUNDED,
    ),
    _fill(
        "folders 5000 deep",
        """
        import os
        try:
            for _ in range(5000):
                os.mkdir("d")
                os.chdir("d")
        except OSError: pass
        print("bounded")
        """,
        _BOUNDED,
    ),
    _fill(
        "folders deeper than a path can say",
        """
        import os
        try:
            for _ in range(200):
                os.mkdir("d" * 250)
                os.chdir("d" * 250)
            open("file", "w").write("deep")
        except OSError: pass
        print("bounded")
        """,
        _BOUNDED,
    ),
    _fill(
        "attributes without end",
        """
        import os
        open("x", "w").close()
        count = 0
        try:
            while count < 10**5:
                os.setxattr("x", f"user.{count}", bytes(1 << 14))
                count += 1
        except OSError: pass
        print("bounded" if count < 1 << 12 else count)
        """,
        _BOUNDED,
        Outcome("memory"),
    ),
    _fill(
        "removes and renames while it fills",
        """
        import os
        for i in range(3000):
            open(f"a{i % 7}", "wb").write(bytes(1000 + i))
            os.replace(f"a{i % 7}", f"b{i % 5}")
        print("bounded")
        """,
        _BOUNDED,
    ),
    python(
        "fills until the end",
        "filesystem",
        """
        import os
        file = os.open("x", os.O_CREAT | os.O_RDWR)
        while True:
            try: os.write(file, bytes(1 << 16))
            except OSError:
                os.ftruncate(file, 0)
                os.lseek(file, 0, 0)
        """,
        TIMEOUT,
        limits=ENDLESS,
    ),
    shell(
        "dd of zeros",
        "filesystem",
        "dd if=/dev/zero of=/tmp/big bs=1M 2>/dev/null || echo bounded",
        _BOUNDED,
        Outcome("memory"),
        Outcome("signal", signal=25),
        limits=SMALL,
    ),
    attack(
        "queues and segments without end",
        "filesystem",
        """
        size = 0
        try:
            for _ in range(10000):
                queue = call("msgget", 0, 0o1600)
                for _ in range(16):
                    call("msgsnd", queue, ctypes.create_string_buffer(b"\\1" + bytes(1031)), 1024, 0o4000)
                    size += 1024
        except OSError: pass
        if size > 64 << 20:
            loot.append(("messages", size))
        count = 0
        try:
            while count < 100000:
                call("semget", 0, 100, 0o1600)
                count += 1
        except OSError: pass
        if count > 40000:
            loot.append(("semaphores", count))
        """,
        Outcome("memory"),
        limits=SMALL,
    ),
)
