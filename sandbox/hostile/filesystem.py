"""Programs that reach for files which are not theirs, or leave traps for whoever reads or removes theirs."""

from .attack import attack
from .program import HELD, HostileProgram, Outcome, python, shell

_NO = Outcome("nonzero", exit_code=1)


def _attack(name: str, code: str, *others: Outcome) -> HostileProgram:
    return attack(name, "filesystem", code, *others)


def _trap(name: str, code: str, *outcomes: Outcome) -> HostileProgram:
    return python(name, "filesystem", code, *(outcomes or (Outcome("ok", out=b"left\n"),)))


PROGRAMS = (
    _attack(
        "reads the host's secrets",
        """
        for path in ("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/root/.ssh/id_rsa", "/root/.bash_history",
                     "/etc/ssh/ssh_host_rsa_key", "/run/secrets", "/var/run/secrets/kubernetes.io/serviceaccount/token",
                     "/etc/kubernetes/admin.conf", "/root/.aws/credentials", "/proc/1/environ"):
            attempt(path, read, path)
        """,
    ),
    _attack(
        "reads a file of the host",
        """
        ways = ["", "/proc/self/root", "/proc/1/root", "/proc/1/cwd/../../..", "/box/../../..",
                "/proc/thread-self/root", f"/proc/{os.getppid()}/root", "/dev/fd/../../..", "/proc/self/cwd/.."]
        for way in ways:
            attempt(way, read, way + CANARY_FILE)
        """,
    ),
    _attack(
        "lists the host's folders",
        """
        for path in ("/root", "/home", "/opt", "/srv", "/mnt", "/media", "/boot", "/lost+found", "/var/lib", "/work"):
            try: names = set(os.listdir(path))
            except OSError: continue
            # The interpreter may lie in somebody's folder; then the way to it is all that is there.
            for own in (sys.prefix, sys.base_prefix):
                if own.startswith(path + "/"):
                    names.discard(own.split("/")[path.count("/") + 1])
            if path in ("/root", "/boot", "/work") and names or any("canary" in name for name in names):
                loot.append((path, sorted(names)[:10]))
        attempt("canary's folder", os.listdir, os.path.dirname(CANARY_FILE))
        """,
    ),
    _attack(
        "finds files in its work folder",
        """
        if os.getcwd() != "/box":
            loot.append(os.getcwd())
        left = set(os.listdir(".")) - {"main.py"}
        if left:
            loot.append(left)
        """,
    ),
    _attack(
        "writes outside its folders",
        """
        def write(folder):
            path = f"{folder}/turngym-written"
            with open(path, "w") as file:
                file.write("x")
            os.unlink(path)
        own = ("/box", "/tmp", "/dev/shm", "/var/tmp", "/run", "/dev/mqueue", "/run/lock", "/var/lock")
        try: names = os.listdir("/")
        except OSError: names = ["bin", "dev", "etc", "lib", "opt", "proc", "root", "sbin", "sys", "usr", "var"]
        folders = ["/", *(f"/{name}" for name in names)]
        for folder in list(folders[1:]):
            try: folders += [f"{folder}/{name}" for name in os.listdir(folder)][:300]
            except OSError: pass
        for folder in folders:
            if os.path.realpath(folder).startswith(own) or folder.startswith("/proc/"):
                continue
            if os.path.isdir(folder):
                attempt(folder, write, folder)
                attempt(f"unnamed in {folder}", os.open, folder, os.O_TMPFILE | os.O_RDWR)
        """,
    ),
    _attack(
        "changes what all programs run",
        """
        for path in (sys.executable, "/bin/sh", "/usr/bin/env", os.__file__, "/etc/passwd", "/etc/ld.so.preload"):
            real = os.path.realpath(path)
            attempt(f"write {path}", os.open, real, os.O_WRONLY)
            attempt(f"mode of {path}", os.chmod, real, 0o777)
            attempt(f"owner of {path}", os.chown, real, os.getuid(), -1)
            attempt(f"remove {path}", os.unlink, real)
            attempt(f"rename {path}", os.rename, real, "/box/taken")
            attempt(f"attribute of {path}", os.setxattr, real, "user.x", b"x")
            attempt(f"time of {path}", os.utime, real, (0, 0))
        """,
    ),
    _attack(
        "links to files that are not its own",
        """
        for path in ("/etc/passwd", "/bin/sh", sys.executable):
            attempt(path, os.link, os.path.realpath(path), "/box/link")
        """,
    ),
    _attack(
        "mounts",
        """
        for source, target, kind, flags in (
            (b"tmpfs", b"/tmp", b"tmpfs", 0), (b"/", b"/tmp", None, 4096), (b"none", b"/", None, 32 | 4096),
            (b"proc", b"/tmp", b"proc", 0), (b"sysfs", b"/tmp", b"sysfs", 0), (b"none", b"/", None, 1 << 18),
            (b"overlay", b"/tmp", b"overlay", 0), (b"cgroup", b"/tmp", b"cgroup", 0), (b"fuse", b"/tmp", b"fuse", 0),
        ):
            attempt((target, kind, flags), call, "mount", source, target, kind, flags, None)
        for path in (b"/box", b"/proc", b"/tmp", b"/usr", b"/"):
            attempt(f"unmount {path}", call, "umount2", path, 2)
        """,
    ),
    _attack(
        "mounts in the new way",
        """
        attempt("fsopen", call, "fsopen", b"tmpfs", 0)
        attempt("open_tree", call, "open_tree", -100, b"/", 1)
        attempt("move_mount", call, "move_mount", -100, b"/box", -100, b"/tmp", 0)
        attempt("mount_setattr", call, "mount_setattr", -100, b"/", 0, (ctypes.c_uint64 * 4)(0, 1, 0, 0), 32)
        """,
    ),
    _attack(
        "leaves by chroot",
        """
        os.mkdir("inner")
        attempt("chroot", os.chroot, "inner")
        attempt("pivot_root", call, "pivot_root", b".", b"inner")
        for _ in range(64): os.chdir("..")
        attempt("canary", read, "." + CANARY_FILE)
        """,
    ),
    _attack(
        "makes devices",
        """
        for kind in (0o60000, 0o20000):
            for major, minor in ((1, 1), (8, 0), (254, 0), (10, 229), (5, 1)):
                attempt((kind, major, minor), os.mknod, f"/tmp/{kind}-{major}-{minor}", kind | 0o666,
                        os.makedev(major, minor))
        """,
    ),
    _attack(
        "finds devices",
        """
        harmless = {"null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr", "shm",
                    "ptmx", "pts", "mqueue", "console", "core"}
        if found := set(os.listdir("/dev")) - harmless:
            loot.append(found)
        for path in ("/dev/sda", "/dev/vda", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/loop0", "/dev/nvidia0"):
            attempt(path, os.open, path, os.O_RDONLY)
        """,
    ),
    _attack(
        "privileged attributes",
        """
        import fcntl, struct
        open("own", "w").close()
        for name in ("security.capability", "trusted.x", "system.x"):
            attempt(name, os.setxattr, "own", name, struct.pack("<5I", 0x2000001, 0xFFFFFFFF, 0, 0, 0))
        def immutable():
            with open("own") as file:
                fcntl.ioctl(file, 0x40086602, struct.pack("l", 0x10))  # FS_IOC_SETFLAGS, immutable
        attempt("immutable", immutable)
        """,
    ),
    _attack(
        "file handles",
        """
        handle = ctypes.create_string_buffer(b"\\x80\\0\\0\\0", 136)
        mount = ctypes.c_int()
        try: call("name_to_handle_at", -100, b"/", handle, ctypes.byref(mount), 0)
        except OSError: pass
        attempt("open_by_handle_at", lambda: call("open_by_handle_at", os.open("/", os.O_RDONLY), handle, 0))
        """,
    ),
    _attack(
        "sees others' shared memory",
        """
        if left := os.listdir("/dev/shm"):
            loot.append(left)
        for table in ("shm", "msg", "sem"):
            try: lines = open(f"/proc/sysvipc/{table}").readlines()[1:]
            except OSError: continue
            if lines:
                loot.append((table, lines))
        """,
    ),
    _trap("leaves a link", "import os; os.symlink('/etc/shadow', 'answer.txt'); os.symlink('..', 'up'); print('left')"),
    _trap(
        "leaves a link through a process's root",
        "import os; os.symlink('/proc/1/root' + CANARY_FILE, 'b'); print('found' if os.path.exists('b') else 'left')",
    ),
    _trap("leaves a FIFO", "import os; os.mkfifo('answer.txt'); print('left')"),
    _trap(
        "leaves sockets",
        "import socket; socket.socket(socket.AF_UNIX).bind('answer.txt'); print('left')",
        Outcome("ok", out=b"left\n"),
        _NO,
    ),
    _trap(
        "leaves odd names",
        "open(b'\\xff\\n\\x1b[31m', 'w'); open('-rf', 'w'); open(' ', 'w'); open('\\t*', 'w'); print('left')",
    ),
    _trap(
        "leaves the longest names",
        "import os; open('n' * 255, 'w'); os.makedirs('/'.join(['d' * 200] * 15)); print('left')",
    ),
    _trap(
        "leaves folders that nobody may enter",
        """
        import os
        os.makedirs("locked/inner")
        open("locked/inner/file", "w").close()
        for path in ("locked/inner/file", "locked/inner", "locked", "."): os.chmod(path, 0)
        print("left")
        """,
        Outcome("ok", out=b"left\n"),
        Outcome("nonzero", exit_code=1, err_has=b"PermissionError"),  # its work folder need not be its own
    ),
    _trap(
        "leaves links in a circle",
        "import os; os.symlink('b', 'a'); os.symlink('a', 'b'); os.symlink('.', 'here'); print('left')",
    ),
    _trap(
        "leaves the folder that it stands in",
        "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); print('left')",
    ),
    _trap(
        "replaces its work folder",
        """
        import os
        for action, paths in ((os.rename, ("/box", "/tmp/box")), (os.rmdir, ("/box",)), (os.symlink, ("/", "/box"))):
            try: action(*paths)
            except OSError: pass
        print("left")
        """,
    ),
    _trap(
        "watches and locks all that it sees",
        """
        import ctypes, fcntl, os
        libc = ctypes.CDLL(None)
        watch = libc.inotify_init1(0)
        for folder in ("/", "/usr", "/box", "/tmp", "/etc"):
            libc.inotify_add_watch(watch, folder.encode(), 0xFFF)
            try: fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError: pass
        print("left")
        """,
    ),
    _trap(
        "leaves modules under known names",
        """
        for folder in (".", "/tmp"):
            for name in ("json", "socket", "sitecustomize", "usercustomize", "random", "site"):
                open(f"{folder}/{name}.py", "w").write("raise SystemExit(7)")
        print("left")
        """,
    ),
    _trap(
        "leaves settings for shells and interpreters",
        """
        import os
        for name in (".bashrc", ".profile", ".bash_profile", ".pythonrc.py", ".npmrc", ".gitconfig", "pyvenv.cfg"):
            open(os.path.join("/box", name), "w").write("exit 7")
        print("left")
        """,
    ),
    shell(
        "tar and glob traps",
        "filesystem",
        "cd /box && : > '--checkpoint=1' && : > '--checkpoint-action=exec=sh x' && ln -s / root && echo held",
        HELD,
    ),
)
