"""A session in a jail: its interpreter, the forks of it, and their files."""

import json
import os
import select
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from . import folder, root, seccomp, wire
from .birth import bounds_of, fork_program
from .ground import Ground
from .interpreter import interpret, run_shell
from .kernel import CLONE_NEWNS, set_namespace

_MAX_TOLD: Final = 300
"""Characters of an error that a helper tells: as JSON they fit into one read of a pipe."""
_DIES_MS: Final = 1000


@dataclass
class _Branch:
    """One interpreter; the first sees files as the init does, others through a mount namespace of their own."""

    pid: int
    namespace: str


class Branches:
    """The branches of the session that a jail holds, if it holds one.

    Args:
        ground: What programs run on.
        forkable: The filter of interpreters.
        poll: Where the filter's listener is waited for.
        say: Answers the supervisor.
    """

    def __init__(self, ground: Ground, forkable: seccomp.Filter, poll: select.poll, say: Callable[..., None]) -> None:
        self._ground, self._filter, self._poll, self._say = ground, forkable, poll, say
        self._branches: dict[int, _Branch] = {}
        self._ends: dict[int, int] = {}  # branches of forks by a descriptor that is ready when they have ended
        self._num_branches = 0
        self._disk = (1 << 20, 64)
        self.listener = -1
        self._is_fork_expected = False
        self._forking: int | None = None  # the pid that was allowed a namespace of its own

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return bool(self._branches)

    def open(self, message: wire.Message) -> None:
        """Start an interpreter on the descriptors stdin, stdout, stderr, control (bash: and replies)."""
        body = message.body
        self._disk = tuple(body["disk"])
        self._ground.clear(*self._disk)
        archive, *contents = message.blobs
        if archive:
            folder.unpack(self._ground.folder, archive)
        for path, content in zip(body["paths"], contents, strict=True):
            folder.write(self._ground.folder, path, content)
        is_python = body["language"] == "python"
        born = fork_program(
            self._ground,
            self._filter,
            message.fds,
            bounds_of(body["bounds"], is_forked_python=is_python),
            interpret if is_python else run_shell,
            is_interpreter=True,
        )
        if born.listener is not None:
            self.listener = born.listener
            self._poll.register(self.listener, select.POLLIN)
        wrong = born.told()
        if wrong is not None:
            raise RuntimeError(f"the interpreter could not be confined: {wrong}")
        self._branches = {0: _Branch(born.pid, self._ground.mount_namespace(os.getpid()))}
        self._num_branches = 1
        self._say({"op": "opened", "branch": 0})

    def note_end(self, pid: int, status: int) -> None:
        """Say so if it was an interpreter that ended."""
        for number, branch in self._branches.items():
            if pid == branch.pid:
                self._say({"op": "gone", "request": -1, "branch": number, "status": status})

    def note_ready(self, ready: Iterable[int]) -> None:
        """Say which forks have ended: they are children of the interpreter that they were forked from."""
        for fd in ready:
            if fd in self._ends:
                self._say({"op": "gone", "request": -1, "branch": self._ends[fd], "status": 0})
                self._forget_end(fd)

    def _forget_end(self, fd: int) -> None:
        self._poll.unregister(fd)
        os.close(fd)
        del self._ends[fd]

    def interrupt(self, message: wire.Message) -> None:
        """Send SIGINT to a branch's interpreter, or to all of its process group."""
        branch = self._branches.get(message.body["branch"])
        if branch is not None:
            with suppress(ProcessLookupError):
                (os.killpg if message.body["and_group"] else os.kill)(branch.pid, signal.SIGINT)

    def end(self, number: int, reap: Callable[[], None]) -> bool:
        """Kill every process that sees a branch's files; return True, with nothing killed, if it is the last branch."""
        branch = self._branches.pop(number, None)
        if branch is None or not self._branches:
            return not self._branches
        while found := self._processes_of(branch):
            _kill_and_wait(found)
            reap()
        return False

    def forget(self) -> None:
        """Be as before the first session."""
        self._forget_listener()
        for fd in list(self._ends):
            self._forget_end(fd)
        self._branches.clear()

    def _forget_listener(self) -> None:
        if self.listener >= 0:
            self._poll.unregister(self.listener)
            seccomp.close_listener(self.listener)
            self.listener = -1

    def answer_call(self, events: int) -> None:
        """Answer a process that asks for namespaces of its own."""
        if not events & select.POLLIN:  # all that could ask are gone, which would be said again and again
            self._forget_listener()
            return
        pid = seccomp.answer(self.listener, is_fork_expected=self._is_fork_expected)
        if pid is not None:
            self._is_fork_expected, self._forking = False, pid

    def expect_fork(self, message: wire.Message) -> None:
        """Allow the next process that asks for it namespaces of its own."""
        self._is_fork_expected, self._forking = True, None
        self._say({"op": "expecting"})

    def forget_fork(self, message: wire.Message) -> None:
        """Allow no longer what `expect_fork` did, and kill what has left for namespaces that are no branch's."""
        self._is_fork_expected, self._forking = False, None
        known = {"", *(branch.namespace for branch in self._branches.values())}
        for pid in self._visible():
            if self._ground.mount_namespace(pid) not in known:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._say({"op": "forgotten"})

    def furnish(self, message: wire.Message) -> None:
        """Give the process that has left for its own namespaces a copy of its parent's files."""
        self._is_fork_expected = False
        pid, self._forking = self._forking, None
        known = {branch.namespace for branch in self._branches.values()}
        namespace = "" if pid is None else self._ground.mount_namespace(pid)
        if pid is None or not namespace or namespace in known:
            raise folder.RefusedError("no process has left for a namespace of its own")
        try:
            fd = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            raise folder.RefusedError("the process that had left is gone") from None
        try:
            _in_helper(fd, self._copy_files)
            end = os.pidfd_open(pid)
        except ProcessLookupError:
            raise folder.RefusedError("the process that had left is gone") from None
        finally:
            os.close(fd)
        number = self._num_branches
        self._num_branches += 1
        self._branches[number] = _Branch(pid, namespace)
        self._ends[end] = number
        self._poll.register(end, select.POLLIN)
        self._say({"op": "furnished", "branch": number})

    def _copy_files(self) -> None:
        root.make_private(*self._disk)
        for name, place in root.PRIVATE.items():
            try:
                folder.copy(place, f"{root.SPARE}/{name}")
            except OSError as error:  # something that goes on running changes them
                raise folder.RefusedError(f"the files could not be copied: {error.strerror}") from None
        root.show_private()

    def do_files(self, message: wire.Message) -> None:
        """Do something to a branch's files."""
        body = message.body
        namespace = self.namespace_of(body["branch"])
        work = partial(_FILE_WORK[body["what"]], self, body, message.blobs, message.fds)
        try:
            if namespace is None and body["what"] != "pack":
                work()
            else:
                _in_helper(namespace, work)
        finally:
            if namespace is not None:
                os.close(namespace)

    def _read(self, body: dict[str, Any], blobs: list[bytes], fds: list[int]) -> None:
        fd = folder.open_to_read(self._ground.folder, body["path"])
        try:
            self._say({"op": "file"}, fds=(fd,))
        finally:
            os.close(fd)

    def _write(self, body: dict[str, Any], blobs: list[bytes], fds: list[int]) -> None:
        folder.write(self._ground.folder, body["path"], blobs[0])
        self._say({"op": "written"})

    def _list(self, body: dict[str, Any], blobs: list[bytes], fds: list[int]) -> None:
        found = folder.entries(self._ground.folder, body["path"], body["max_entries"])
        self._say({"op": "listed"}, [json.dumps(found).encode()])

    def _pack(self, body: dict[str, Any], blobs: list[bytes], fds: list[int]) -> None:
        with os.fdopen(fds[0], "wb") as stream:
            folder.pack(self._ground.folder, stream, body["max_bytes"])
        self._say({"op": "packed"})

    def namespace_of(self, number: int) -> int | None:
        """Return a descriptor of a branch's mount namespace; None if it is this process's own."""
        if number == 0 or number not in self._branches:
            return None
        return os.open(f"/proc/{self._branches[number].pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def _processes_of(self, branch: _Branch) -> list[int]:
        return [pid for pid in self._visible() if self._ground.mount_namespace(pid) == branch.namespace]

    def _visible(self) -> list[int]:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


_FILE_WORK: Final = {"read": Branches._read, "write": Branches._write, "list": Branches._list, "pack": Branches._pack}


def _kill_and_wait(pids: Iterable[int]) -> None:
    """Kill processes, and wait until their parents can reap them: until then they count against the session's limit."""
    ends = []
    for pid in pids:
        with suppress(ProcessLookupError):
            ends.append(os.pidfd_open(pid))
            os.kill(pid, signal.SIGKILL)
    for end in ends:
        waiting = select.poll()
        waiting.register(end, select.POLLIN)
        waiting.poll(_DIES_MS)
        os.close(end)


def _in_helper(namespace: int | None, work: Callable[[], None]) -> None:
    """Do something as a child, which has entered a branch's namespace if there is one to enter."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            if namespace is not None:
                set_namespace(namespace, CLONE_NEWNS)
            work()
            os._exit(0)
        except BaseException as error:
            kind = "refused" if isinstance(error, folder.RefusedError) else "failed"
            os.write(writing, json.dumps([kind, str(error)[:_MAX_TOLD]]).encode())
        finally:
            os._exit(1)
    os.close(writing)
    told = os.read(reading, 4096)
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    if told:
        kind, why = json.loads(told)
        raise folder.RefusedError(why) if kind == "refused" else RuntimeError(why)
    if status:
        raise RuntimeError(f"what worked for the init ended with status {status}")
