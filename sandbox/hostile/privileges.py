"""Programs that want more rights: other namespaces, users, capabilities, limits, a terminal."""

from .attack import attack
from .program import HELD, Outcome, python, shell

PROGRAMS = (
    attack(
        "new namespaces",
        "processes",
        """
        for flag in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
            attempt(f"unshare {flag:#x}", call, "unshare", flag)
            attempt(f"user and {flag:#x}", call, "unshare", 0x10000000 | flag)
        """,
    ),
    attack(
        "clones into new namespaces",
        "processes",
        """
        flags = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
        for flag in flags:
            for also in (0, 0x10000000):
                try: pid = call("clone", flag | also | 17, 0, 0, 0, 0)
                except OSError: continue
                if pid == 0: os._exit(0)
                loot.append(hex(flag | also))
        arguments = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)
        try: pid = call("clone3", arguments, 88)
        except OSError: pass
        else:
            if pid == 0: os._exit(0)
            loot.append("clone3")
        """,
    ),
    attack(
        "enters others' namespaces",
        "processes",
        """
        for pid in others():
            for name in ("mnt", "net", "pid", "user", "ipc"):
                attempt(f"{name} of {pid}", lambda: call("setns", os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), 0))
            attempt(f"all of {pid}", lambda: call("setns", os.pidfd_open(pid), 0x20000))
        """,
    ),
    attack(
        "becomes another user",
        "processes",
        """
        mine = os.getuid()
        for action in (os.setuid, os.seteuid, os.setgid, os.setegid):
            attempt(action.__name__, action, 0)
        attempt("setresuid", os.setresuid, mine, 0, mine)
        attempt("setgroups", os.setgroups, [0, 27, 999])
        if 0 in (os.getuid(), os.geteuid()):
            loot.append("root")
        """,
    ),
    attack(
        "has capabilities",
        "processes",
        """
        header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        call("capget", header, sets)
        if any(sets):
            loot.append(("capabilities", list(map(hex, sets))))
        if libc.prctl(39, 0, 0, 0, 0) != 1:
            loot.append("new privileges are possible")
        for capability in range(41):
            if libc.prctl(47, 2, capability, 0, 0) == 0:  # PR_CAP_AMBIENT_RAISE
                loot.append(("ambient", capability))
        """,
    ),
    shell(
        "setuid programs",
        "processes",
        """
        for program in su sudo passwd mount newgrp pkexec; do echo | $program -c id root 2>/dev/null; done
        ping -c1 127.0.0.1 2>/dev/null
        [ $EUID != 0 ] && echo held
        """,
        HELD,
    ),
    attack(
        "setuid bit on its own copy",
        "processes",
        """
        import shutil, subprocess
        copy = shutil.copy("/usr/bin/id", "id")
        os.chmod(copy, 0o6755)
        if subprocess.run(["./id", "-u"], capture_output=True, text=True).stdout.strip() == "0":
            loot.append("root")
        """,
    ),
    attack(
        "program that lies in memory only",
        "processes",
        """
        file = os.memfd_create("id", 0)
        os.write(file, open("/usr/bin/id", "rb").read())
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.dup2(writer, 1)
            try: os.execve(file, ["id", "-u"], {})
            finally: os._exit(1)
        os.wait()
        os.close(writer)
        if os.read(reader, 100).strip() == b"0":
            loot.append("root")
        """,
    ),
    attack(
        "raises its limits",
        "processes",
        """
        import resource
        for name in filter(lambda name: name.startswith("RLIMIT_"), dir(resource)):
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            if hard != resource.RLIM_INFINITY:
                attempt(name, resource.setrlimit, number, (hard + 1, hard + 1))
                attempt(name, resource.setrlimit, number, (hard, resource.RLIM_INFINITY))
        """,
    ),
    python(
        "takes its parent's limits away",  # which may end its runner, but not well
        "processes",
        """
        import os, resource
        for pid in {1, os.getppid()} - {0}:
            for action, *arguments in (
                (os.setpriority, os.PRIO_PROCESS, pid, 19),
                (os.sched_setaffinity, pid, {min(os.sched_getaffinity(0))}),
                (os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0)),
                (resource.prlimit, pid, resource.RLIMIT_NOFILE, (0, 0)),
                (resource.prlimit, pid, resource.RLIMIT_NPROC, (0, 0)),
                (resource.prlimit, pid, resource.RLIMIT_AS, (0, 0)),
                (resource.prlimit, pid, resource.RLIMIT_CPU, (0, 0)),
            ):
                try: action(*arguments)
                except OSError: pass
        os._exit(3)
        """,
        Outcome("nonzero", exit_code=3),
        Outcome("killed"),
    ),
    attack(
        "types into its terminal",
        "processes",
        """
        import fcntl, termios
        for file in (0, 1, 2):
            attempt(f"terminal {file}", fcntl.ioctl, file, termios.TIOCSTI, b"x")
            attempt(f"group of terminal {file}", os.tcgetpgrp, file)
        attempt("terminal", os.open, "/dev/tty", os.O_RDWR)
        """,
    ),
)
