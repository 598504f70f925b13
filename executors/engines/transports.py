"""Ways for a bucket of weights to get from a learner's process into an engine's, on one machine.

`shm` lays all buckets in one memory-mapped file, which stays as the snapshot for restarted engines.
`cuda_ipc` lends the engine the learner's GPU buffer. A failed peer shows as a failed call, never as
a collective that waits for ever.
"""

import contextlib
import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from ...errors import WeightSyncError
from .weights import Bucket, TensorSpec, checksum, offsets, views

_PREFIX = "turngym-weights-"


class BucketWriter(Protocol):
    """The learner's end of a transport; buckets are numbered as the plan has them."""

    def write(self, index: int, tensors: list[torch.Tensor]) -> Bucket:
        """Copy tensors into bucket `index`, converted to the dtypes of the plan."""
        ...

    def close(self) -> None:
        """Free the buffers."""
        ...


@dataclass(frozen=True)
class ShmHandle:
    """Where a bucket lies in a mapped file."""

    host: str
    path: str
    file_bytes: int
    offset: int


class ShmWriter:
    """All buckets in one file in /dev/shm, or in the temporary folder where that is too small."""

    def __init__(self, plan: list[tuple[TensorSpec, ...]]) -> None:
        self._plan = plan
        sizes = [offsets(tensors)[1] for tensors in plan]
        self._starts = [sum(sizes[:index]) for index in range(len(sizes))]
        self._file_bytes = sum(sizes)
        sweep_leftovers()
        self._path = _reserve(self._file_bytes, f"{_PREFIX}{os.getpid()}-{id(self):x}")
        self._buffer = torch.from_file(str(self._path), shared=True, size=self._file_bytes, dtype=torch.uint8)

    def write(self, index: int, tensors: list[torch.Tensor]) -> Bucket:
        """Copy tensors into their places in the file."""
        specs = self._plan[index]
        start, size = self._starts[index], offsets(specs)[1]
        window = self._buffer[start : start + size]
        for (_, place), tensor in zip(views(window, specs), tensors, strict=True):
            place.copy_(tensor)
        handle = ShmHandle(socket.gethostname(), str(self._path), self._file_bytes, start)
        return Bucket(specs, "shm", handle, checksum(window))

    def close(self) -> None:
        """Remove the file; engines that have it mapped keep their mapping."""
        self._path.unlink(missing_ok=True)


class CudaIpcWriter:
    """One GPU buffer, written again for each bucket: an engine copies it before the next one comes."""

    def __init__(self, plan: list[tuple[TensorSpec, ...]]) -> None:
        self._plan = plan
        size = max(offsets(tensors)[1] for tensors in plan)
        self._buffer = torch.empty(size, dtype=torch.uint8, device="cuda")

    def write(self, index: int, tensors: list[torch.Tensor]) -> Bucket:
        """Copy tensors into the shared buffer."""
        from torch.multiprocessing.reductions import reduce_tensor

        specs = self._plan[index]
        window = self._buffer[: offsets(specs)[1]]
        for (_, place), tensor in zip(views(window, specs), tensors, strict=True):
            place.copy_(tensor)
        torch.cuda.synchronize()
        rebuild, arguments = reduce_tensor(window)
        return Bucket(specs, "cuda_ipc", (rebuild, arguments, _gpu_uuid(window.device)), checksum(window))

    def close(self) -> None:
        """Free the buffer."""
        del self._buffer


def open_bucket(bucket: Bucket) -> torch.Tensor:
    """Return the bucket's bytes as a uint8 tensor in this process.

    The tensor of `shm` is the file itself, that of `cuda_ipc` a copy.

    Raises:
        WeightSyncError: The buffer cannot be reached from here.
    """
    try:
        opener = _OPENERS[bucket.transport]
    except KeyError:
        raise WeightSyncError(
            f"no weight transport {bucket.transport!r}; known: {', '.join(sorted(_OPENERS))}"
        ) from None
    opened: torch.Tensor = opener(bucket)
    return opened


def sweep_leftovers() -> None:
    """Remove weight files of processes that no longer live."""
    for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        for path in folder.glob(f"{_PREFIX}*"):
            pid = path.name.removeprefix(_PREFIX).split("-")[0]
            if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                with contextlib.suppress(PermissionError):  # another user's
                    path.unlink(missing_ok=True)


def _open_shm(bucket: Bucket) -> torch.Tensor:
    handle: ShmHandle = bucket.handle
    if handle.host != socket.gethostname():
        raise WeightSyncError(
            f"weights lie in shared memory of {handle.host!r}, and this engine runs on {socket.gethostname()!r}; "
            "put engine and learner on one node"
        )
    if not Path(handle.path).exists():
        raise WeightSyncError(f"the weight file {handle.path!r} is gone; did the learner's first rank die?")
    whole = torch.from_file(handle.path, shared=True, size=handle.file_bytes, dtype=torch.uint8)
    return whole[handle.offset : handle.offset + offsets(bucket.tensors)[1]]


def _open_cuda_ipc(bucket: Bucket) -> torch.Tensor:
    rebuild, arguments, uuid = bucket.handle
    here = [index for index in range(torch.cuda.device_count()) if _gpu_uuid(torch.device("cuda", index)) == uuid]
    if not here:
        raise WeightSyncError(f"weights lie on GPU {uuid}, which this engine does not see; CUDA IPC needs one GPU")
    # rebuild_cuda_tensor takes the device index at place 6, as the exporting process numbered it.
    arguments = (*arguments[:6], here[0], *arguments[7:])
    lent: torch.Tensor = rebuild(*arguments)
    return lent.clone()


def _gpu_uuid(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def _reserve(num_bytes: int, name: str) -> Path:
    """Make a file that really has its bytes: one that only claims them kills who writes into it once memory is full."""
    tried = []
    for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        path = folder / name
        try:
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            return path
        except OSError as error:
            path.unlink(missing_ok=True)
            tried.append(f"{folder} ({error.strerror})")
    raise WeightSyncError(
        f"{num_bytes / 2**20:.0f} MiB for weights fit neither into {' nor into '.join(tried)}; "
        "free some space, or set TMPDIR to a folder with room"
    )


_OPENERS: dict[str, Any] = {"shm": _open_shm, "cuda_ipc": _open_cuda_ipc}
