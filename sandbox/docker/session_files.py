"""The files of a container's session: its runner does to them what is asked, as the programs' user."""

import json
from abc import abstractmethod
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from ...errors import ProgramError, SandboxError
from ..base import Session
from ..job import check_path
from ..limits import Limits
from ..results import FileInfo
from ..tar_check import check_tar, max_tar_bytes, pack_tar
from .container import Container
from .orders import ANSWER_S, send_files

T = TypeVar("T")

_MAX_LISTED_BYTES = 32 << 10  # of one entry of a listing, as JSON


class SessionFiles(Session):
    """The half of a session that sees to its files."""

    _container: Container
    _limits: Limits

    @abstractmethod
    def _busy(self) -> AbstractAsyncContextManager[None]:
        """Do something that needs the container."""

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """See `Session`."""
        return await self._fetch("read", max_bytes, path=check_path(path), max_bytes=max_bytes)

    async def write_file(self, path: str, content: bytes) -> None:
        """See `Session`."""
        path = check_path(path)
        async with self._busy():
            await self._about(path, send_files(self._container.channel, {path: content}))

    async def list_files(self, path: str = ".", *, max_entries: int = 10_000) -> list[FileInfo]:
        """See `Session`."""
        path = check_path(path)
        text = await self._fetch("list", max_entries * _MAX_LISTED_BYTES, path=path, max_entries=max_entries)
        return [_file_info(entry) for entry in json.loads(text)]

    async def snapshot(self) -> bytes:
        """See `Session`."""
        bounds = {"max_bytes": self._limits.disk_bytes, "max_members": self._limits.num_inodes}
        data = await self._fetch(
            "snapshot",
            max_tar_bytes(**bounds),
            path=".",
            max_bytes=self._limits.disk_bytes,
            max_entries=self._limits.num_inodes,
        )
        return pack_tar(check_tar(data, **bounds))

    async def _fetch(self, op: str, max_reply_bytes: int, *, path: str, **fields: Any) -> bytes:  # Any: JSON
        async with self._busy():
            call = self._container.channel.call(
                op, deadline_s=ANSWER_S, max_reply_bytes=max_reply_bytes, path=path, **fields
            )
            return (await self._about(path, call))[1]

    async def _about(self, path: str, work: Awaitable[T]) -> T:
        try:
            return await work
        except ProgramError as error:
            raise ProgramError(f"{path!r} in the sandbox: {error}") from None


def _file_info(entry: Any) -> FileInfo:  # Any: JSON
    path, kind, num_bytes = entry
    if not isinstance(path, str) or kind not in ("file", "folder", "link", "other") or not isinstance(num_bytes, int):
        raise SandboxError(f"the runner sent a listing that is none: {str(entry)[:200]}")
    return FileInfo(path, kind, num_bytes)
