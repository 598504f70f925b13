"""Programs that reach for the kernel's most dangerous parts."""

from .attack import attack
from .program import HostileProgram, Outcome


def _attack(name: str, code: str, *others: Outcome) -> HostileProgram:
    return attack(name, "introspection", code, *others)


PROGRAMS = (
    _attack(
        "kernel's dangerous calls",
        """
        page = ctypes.create_string_buffer(4096)
        must_refuse("bpf", 5, page, 128)
        must_refuse("perf_event_open", page, 0, -1, -1, 0)
        must_refuse("userfaultfd", 0)
        must_refuse("keyctl", 0, -3, 0)
        must_refuse("add_key", b"user", b"x", b"y", 1, -3)
        must_refuse("request_key", b"user", b"x", 0, -3)
        must_refuse("fanotify_init", 0, 0)
        must_refuse("open_by_handle_at", -1, page, 0)
        """,
    ),
    _attack(
        "io_uring",
        """
        page = ctypes.create_string_buffer(4096)
        must_refuse("io_uring_setup", 4, page)
        must_refuse("io_uring_enter", 0, 0, 0, 0, 0)
        must_refuse("io_uring_register", 0, 0, 0, 0)
        """,
    ),
    _attack(
        "administers the machine",
        """
        page = ctypes.create_string_buffer(4096)
        must_refuse("init_module", page, 0, page)
        must_refuse("finit_module", 0, page, 0)
        must_refuse("kexec_load", 0, 0, 0, 0)
        must_refuse("reboot", 0, 0, 0)
        must_refuse("swapon", page, 0)
        must_refuse("acct", b"/box/acct")
        must_refuse("iopl", 3)
        must_refuse("ioperm", 0x70, 1, 1)
        must_refuse("syslog", 3, page, 4096)
        attempt("name", socket.sethostname, "owned")
        """,
    ),
    _attack(
        "calls of another architecture",
        """
        import mmap
        if os.uname().machine == "x86_64":
            for number in (39, 41, 56, 101, 165, 272):
                if libc.syscall(ctypes.c_long(0x40000000 | number), 0x10000000, 0, 0, 0, 0) >= 0:
                    loot.append(("x32", number))
            # push rbx; mov eax, 310 (unshare); mov ebx, CLONE_NEWUSER; int 0x80; pop rbx; ret
            code = bytes.fromhex("53 b8 36 01 00 00 bb 00 00 00 10 cd 80 5b c3")
            page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
            page.write(code)
            function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
            if function() >= 0:
                loot.append("32-bit calls")
        """,
        Outcome("signal", signal=31),
        Outcome("signal", signal=11),
    ),
    _attack(
        "kernel's own files",
        """
        for path in ("/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg",
                     "/proc/sched_debug", "/proc/timer_list", "/sys/kernel/debug", "/sys/kernel/security"):
            attempt(path, read, path)
        try: symbols = read("/proc/kallsyms", 4096)
        except OSError: symbols = b""
        if any(int(line.split()[0], 16) for line in symbols.splitlines()[:-1]):
            loot.append("kernel addresses")
        """,
    ),
    _attack(
        "kernel's settings",
        """
        def write(path, text):
            with open(path, "w") as file:
                file.write(text)
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory",
                     "/proc/sys/fs/binfmt_misc/register", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper",
                     "/proc/self/uid_map", "/proc/self/gid_map", "/proc/1/oom_score_adj", "/proc/sys/kernel/hostname"):
            attempt(path, write, path, "1")
        """,
    ),
    _attack(
        "cgroups",
        """
        import glob
        for path in glob.glob("/sys/fs/cgroup/**/cgroup.procs", recursive=True)[:50]:
            attempt(path, open, path, "w")
        for path in glob.glob("/sys/fs/cgroup/**/release_agent", recursive=True):
            attempt(path, open, path, "w")
        """,
    ),
)
