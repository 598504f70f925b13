"""Weights in shared memory: they arrive as they left, and nothing stays behind."""

import errno
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from turngym.errors import WeightSyncError
from turngym.executors.engines.transports import ShmWriter, open_bucket, sweep_leftovers
from turngym.executors.engines.weights import ALIGNMENT, TensorSpec, checksum, offsets, views

SPECS = (TensorSpec("a", "bfloat16", (3, 5)), TensorSpec("b", "float32", (7,)))


@pytest.fixture
def tensors() -> list[torch.Tensor]:
    return [torch.randn(3, 5), torch.randn(7)]


@pytest.fixture
def writer():
    writer = ShmWriter([SPECS, (TensorSpec("c", "float32", (2, 2)),)])
    yield writer
    writer.close()


def test_tensors_arrive_converted_and_aligned(writer, tensors):
    bucket = writer.write(0, tensors)
    other = writer.write(1, [torch.ones(2, 2)])
    buffer = open_bucket(bucket)
    got = dict(views(buffer, bucket.tensors))
    assert torch.equal(got["a"], tensors[0].bfloat16())
    assert torch.equal(got["b"], tensors[1])
    assert checksum(buffer) == bucket.checksum
    assert all(start % ALIGNMENT == 0 for start in offsets(SPECS)[0])
    assert torch.equal(dict(views(open_bucket(other), other.tensors))["c"], torch.ones(2, 2))


@pytest.mark.slow
def test_another_process_reads_the_same_bytes(writer, tensors):
    import pickle

    bucket = writer.write(0, tensors)
    program = (
        "import pickle, sys\n"
        "from turngym.executors.engines.transports import open_bucket\n"
        "from turngym.executors.engines.weights import checksum\n"
        "print(checksum(open_bucket(pickle.load(sys.stdin.buffer))))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(bucket), capture_output=True, timeout=120)
    assert int(done.stdout) == bucket.checksum


def test_checksum_sees_a_changed_bit_and_a_changed_order():
    buffer = torch.arange(0, 4 * 70_000, dtype=torch.int32).view(torch.uint8)
    swapped = buffer.clone().view(torch.int32)
    swapped[[5, 66_000]] = swapped[[66_000, 5]]
    flipped = buffer.clone()
    flipped[-1] ^= 1
    assert len({checksum(b) for b in (buffer, swapped.view(torch.uint8), flipped)}) == 3
    assert checksum(buffer) == checksum(buffer.clone())


def test_checksum_tells_equal_chunks_at_different_places_apart():
    chunk = 16 * 65_521 * 4
    zeros = torch.zeros(3 * chunk, dtype=torch.uint8)
    first, second = zeros.clone(), zeros.clone()
    first[:chunk] = 1
    second[chunk : 2 * chunk] = 1
    assert checksum(first) != checksum(second)


def test_errors_name_what_cannot_be_reached(writer, tensors):
    bucket = writer.write(0, tensors)
    with pytest.raises(WeightSyncError, match="engine and learner on one node"):
        open_bucket(replace(bucket, handle=replace(bucket.handle, host="elsewhere")))
    with pytest.raises(WeightSyncError, match="no weight transport 'pigeon'; known: cuda_ipc, shm"):
        open_bucket(replace(bucket, transport="pigeon"))
    writer.close()
    with pytest.raises(WeightSyncError, match="gone"):
        open_bucket(bucket)
    assert bucket.handle.host == socket.gethostname()


def test_files_of_dead_processes_are_swept_and_ours_stay(writer, tensors):
    bucket = writer.write(0, tensors)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    folder = Path(bucket.handle.path).parent
    leftover = folder / f"turngym-weights-{dead.pid}-1"
    leftover.write_bytes(b"x")
    sweep_leftovers()
    assert not leftover.exists()
    assert Path(bucket.handle.path).exists()
    assert str(os.getpid()) in bucket.handle.path


def test_weights_go_elsewhere_where_shared_memory_is_too_small(tensors, tmp_path, monkeypatch):
    reserve = os.posix_fallocate

    def is_full(descriptor: int, start: int, size: int) -> None:
        if "/dev/shm/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", is_full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    writer = ShmWriter([SPECS])
    bucket = writer.write(0, tensors)
    assert Path(bucket.handle.path).parent == tmp_path
    assert checksum(open_bucket(bucket)) == bucket.checksum
    writer.close()
    assert not list(tmp_path.iterdir())
    assert not list(Path("/dev/shm").glob(f"turngym-weights-{os.getpid()}-*"))
    monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
    with pytest.raises(WeightSyncError, match=r"fit neither into /dev/shm \(No space left on device\) nor into"):
        ShmWriter([SPECS])
