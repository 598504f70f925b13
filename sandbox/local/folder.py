"""A session's files, seen from its jail's init: no link is followed, and nothing but regular files is opened."""

import errno
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Final

from .kernel import open_beneath

_KINDS: Final = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class RefusedError(Exception):
    """What was asked of the files cannot be done; the message is for who asked."""


def _reason(error: OSError) -> str:
    return os.strerror(error.errno or 0).lower()


def open_to_read(folder: str, path: str) -> int:
    """Return a descriptor of a regular file."""
    root_fd = os.open(folder, _FOLDER)
    try:
        fd = open_beneath(root_fd, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise RefusedError(f"cannot read {path!r}: {_reason(error)}") from None
    finally:
        os.close(root_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RefusedError(f"cannot read {path!r}: it is no regular file")
    return fd


def write(folder: str, path: str, content: bytes, mode: int = 0o644) -> None:
    """Write a regular file, making the folders above it; only a new one gets the mode."""
    names = path.split("/")
    fd = os.open(folder, _FOLDER)
    try:
        for name in names[:-1]:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=fd)
            below = open_beneath(fd, name, _FOLDER)
            os.close(fd)
            fd = below
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY
        file_fd = open_beneath(fd, names[-1], flags, mode)
        try:
            if not stat.S_ISREG(os.fstat(file_fd).st_mode):
                raise RefusedError(f"cannot write {path!r}: it is no regular file")
            view = memoryview(content)
            while view:
                view = view[os.write(file_fd, view) :]
        finally:
            os.close(file_fd)
    except OSError as error:
        raise RefusedError(f"cannot write {path!r}: {_reason(error)}") from None
    finally:
        os.close(fd)


def entries(folder: str, path: str, max_entries: int) -> list[tuple[str, str, int]]:
    """Return path, kind and size of everything below a folder, in order of paths."""
    root_fd = os.open(folder, _FOLDER)
    try:
        fd = open_beneath(root_fd, path, _FOLDER)
    except OSError as error:
        raise RefusedError(f"cannot list {path!r}: {_reason(error)}") from None
    finally:
        os.close(root_fd)
    prefix = "" if path == "." else f"{path}/"
    found = []
    for entry in _walk(fd, prefix):
        found.append(entry)
        if len(found) > max_entries:
            raise RefusedError(f"{path!r} holds more than {max_entries} entries")
    return sorted(found)


def _walk(fd: int, prefix: str) -> Iterator[tuple[str, str, int]]:
    """Yield what lies below a folder; one descriptor at a time is open, however deep it goes."""
    pending = [(prefix, fd)]
    waiting: list[tuple[str, str]] = []
    root_fd = os.dup(fd)
    try:
        while pending or waiting:
            if not pending:
                name, relative = waiting.pop()
                try:
                    pending.append((name, open_beneath(root_fd, relative, _FOLDER)))
                except OSError as error:
                    if error.errno == errno.ENAMETOOLONG:
                        raise RefusedError("folders lie in each other deeper than a path can say") from None
                    continue  # gone or replaced meanwhile
            name, here = pending.pop()
            try:
                for entry in os.scandir(here):
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
                    yield name + entry.name, kind, status.st_size
                    if kind == "folder":
                        waiting.append((f"{name}{entry.name}/", f"{name}{entry.name}"[len(prefix) :]))
            finally:
                os.close(here)
    finally:
        os.close(root_fd)
        for _, here in pending:
            os.close(here)


def pack(folder: str, stream: IO[bytes], max_bytes: int) -> None:
    """Write regular files and folders as a tar archive; links and all else are left out."""
    total = 0
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path, kind, _ in entries(folder, ".", 1 << 20):
            info = tarfile.TarInfo(path)
            if kind == "folder":
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
            elif kind == "file":
                try:
                    fd = open_to_read(folder, path)
                except RefusedError:
                    continue  # gone or replaced meanwhile
                with os.fdopen(fd, "rb") as file:
                    status = os.fstat(fd)
                    total += status.st_size
                    if total > max_bytes:
                        raise RefusedError(f"the files hold more than {max_bytes} bytes")
                    info.size, info.mode = status.st_size, 0o755 if status.st_mode & 0o100 else 0o644
                    archive.addfile(info, _Padded(file))


class _Padded(io.RawIOBase):
    """A file that is read as if it kept its length, also where someone cuts it meanwhile."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size).ljust(size, b"\0")


def unpack(folder: str, archive_bytes: bytes) -> None:
    """Write what an archive holds; the supervisor has checked its names and kinds."""
    with tarfile.open(fileobj=io.BytesIO(archive_bytes)) as archive:
        for member in archive:
            if member.isdir():
                with suppress(FileExistsError):
                    os.makedirs(f"{folder}/{member.name}")
                continue
            file = archive.extractfile(member)
            if file is None:
                raise RefusedError(f"the archive holds {member.name!r}, which is no regular file")
            write(folder, member.name, file.read())
            os.chmod(f"{folder}/{member.name}", member.mode & 0o755)


def copy(source: str, target: str) -> None:
    """Copy files, folders and links as they are; only what is gone meanwhile is left out."""
    for path, kind, _ in entries(source, ".", 1 << 20):
        goal = f"{target}/{path}"
        if kind == "folder":
            os.mkdir(goal)
        elif kind == "link":
            with suppress(FileNotFoundError):
                os.symlink(os.readlink(f"{source}/{path}"), goal)
        elif kind == "file":
            with suppress(RefusedError):
                fd = open_to_read(source, path)
                _copy_sparse(fd, goal)
    for path, kind, _ in entries(source, ".", 1 << 20):
        if kind in ("file", "folder"):
            with suppress(FileNotFoundError):
                os.chmod(f"{target}/{path}", stat.S_IMODE(os.lstat(f"{source}/{path}").st_mode) & 0o777)


def _copy_sparse(fd: int, goal: str) -> None:
    """Copy what is written of a file; its holes stay holes."""
    out = os.open(goal, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        os.truncate(out, size)
        start = 0
        while start < size:
            try:
                start = os.lseek(fd, start, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(fd, start, os.SEEK_HOLE)
            os.lseek(fd, start, os.SEEK_SET)
            os.lseek(out, start, os.SEEK_SET)
            while start < end and (moved := os.sendfile(out, fd, None, end - start)):
                start += moved
    finally:
        os.close(fd)
        os.close(out)
