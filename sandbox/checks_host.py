"""What a sandbox must keep from programs on its host: canaries that show when one got out, and processes that stay."""

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "TURNGYM_MARK"
_GRACE_S = 1.0
_SECRET = "TURNGYM_CANARY_SECRET"
_FILE_TEXT = "canary, and not to be read by any program: "


@dataclass(frozen=True)
class Canaries:
    """Things of the host's that no program may reach."""

    secret: str
    """In the environment and in the file; 32 letters."""
    file: Path
    process: subprocess.Popen[bytes]
    listener: socket.socket
    datagrams: socket.socket
    abstract: socket.socket
    named: socket.socket

    @property
    def names(self) -> dict[str, str | int]:
        """What hostile programs are told; the secret only backwards, so that each copy of it is a leak."""
        return {
            "CANARY_TERCES": self.secret[::-1],
            "CANARY_FILE": str(self.file),
            "CANARY_PID": self.process.pid,
            "CANARY_PORT": self.listener.getsockname()[1],
            "CANARY_UDP_PORT": self.datagrams.getsockname()[1],
            "CANARY_ABSTRACT": self.abstract.getsockname()[1:].decode(),
            "CANARY_SOCKET": str(self.named.getsockname()),
        }

    def troubles(self) -> Iterator[str]:
        """Yield what has been reached since the last call."""
        if self.process.poll() is not None:
            yield "a process of the host was ended"
        if not self.file.is_file() or self.file.read_text() != _FILE_TEXT + self.secret:
            yield "a file of the host was changed"
        for listener in (self.listener, self.abstract, self.named):
            with contextlib.suppress(BlockingIOError):
                listener.accept()[0].close()
                yield f"a program connected to {listener.getsockname()!r} of the host"
        with contextlib.suppress(BlockingIOError):
            self.datagrams.recv(1)
            yield "a datagram reached the host"


@contextlib.contextmanager
def host_canaries() -> Iterator[Canaries]:
    """Set up canaries; enter it before the sandbox starts, so that what it inherits would show."""
    secret = secrets.token_hex(16)
    folder = Path(tempfile.mkdtemp(prefix="turngym-canary-", dir="/var/tmp"))
    os.environ[_SECRET] = secret
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        stack.callback(os.environ.pop, _SECRET, None)
        folder.chmod(0o755)  # only the sandbox keeps programs from it
        file = folder / "secret"
        file.write_text(_FILE_TEXT + secret)
        file.chmod(0o644)
        process = subprocess.Popen(["sleep", "86400"], stdin=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.kill)
        named = folder / "socket"
        sockets = []
        for family, kind, address in (
            (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            (socket.AF_UNIX, socket.SOCK_STREAM, f"\0turngym-canary-{os.getpid()}-{secrets.token_hex(4)}"),
            (socket.AF_UNIX, socket.SOCK_STREAM, str(named)),
        ):
            one = stack.enter_context(socket.socket(family, kind))
            one.bind(address)
            one.setblocking(False)
            if kind == socket.SOCK_STREAM:
                one.listen()
            sockets.append(one)
        named.chmod(0o777)
        yield Canaries(secret, file, process, *sockets)


def new_mark() -> str:
    """Return a name that a program gives its process; forks inherit it, and it is seen on the host."""
    return f"tg{secrets.token_hex(6)}"


def marking(mark: str) -> str:
    """Return Python that marks the process which runs it; programs that it runs are marked by their environment."""
    return (
        f"import ctypes, os; ctypes.CDLL(None).prctl(15, {mark.encode()!r}, 0, 0, 0); os.environ[{MARK!r}] = {mark!r}"
    )


def marked_processes(mark: str) -> list[int]:
    """Return the processes on this host that carry a mark; zombies are not among them."""
    found = []
    variable = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            if rest.split()[0] in "ZX":
                continue
            if name == mark or variable in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended, or is another user's
    return found


async def still_running(mark: str) -> list[int]:
    """Return the marked processes that do not end within a moment."""
    for _ in range(10):
        if not (left := marked_processes(mark)):
            return []
        await asyncio.sleep(_GRACE_S / 10)
    return left
