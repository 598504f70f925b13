"""The parts of the local sandbox that can be looked at by themselves: messages, folders, streams."""

import asyncio
import io
import os
import socket

import pytest

from turngym.sandbox.local import folder, wire
from turngym.sandbox.local.capture import Capture
from turngym.sandbox.tar_check import check_tar


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("size", [0, 10, wire.INLINE_BYTES, 5 << 20])
def test_messages_of_any_size_arrive_whole(pair, size):
    ours, theirs = pair
    blobs = [os.urandom(size), b"", b"end"]
    reading, writing = os.pipe()
    wire.send(ours, {"op": "x", "n": 1}, blobs, [writing])
    os.close(writing)
    message = wire.receive(theirs)
    assert (message.body, message.blobs) == ({"op": "x", "n": 1}, blobs)
    os.write(message.fds[0], b"through")
    os.close(message.fds[0])
    assert os.read(reading, 100) == b"through"
    os.close(reading)


@pytest.mark.parametrize("packet", [b"i", b"i\xff\xff\xff\xff{}", b"i\x02\0\0\0[]", b"i\x02\0\0\0{}", b"m", b"zz"])
def test_what_is_no_message_is_refused(pair, packet):
    ours, theirs = pair
    ours.send(packet)
    with pytest.raises(ValueError, match="a broken message"):
        wire.receive(theirs)


def test_the_end_is_seen(pair):
    ours, theirs = pair
    ours.close()
    with pytest.raises(EOFError):
        wire.receive(theirs)


@pytest.fixture
def tree(tmp_path):
    source = tmp_path / "source"
    (source / "d" / "e").mkdir(parents=True)
    (source / "d" / "f.txt").write_text("hello")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "fifo")
    with (source / "sparse").open("wb") as file:
        file.seek(5 << 20)
        file.write(b"end")
    return source


def test_a_packed_folder_unpacks_to_its_files_and_folders(tree, tmp_path):
    stream = io.BytesIO()
    folder.pack(str(tree), stream, 10 << 20)
    target = tmp_path / "target"
    target.mkdir()
    check_tar(stream.getvalue(), max_bytes=10 << 20, max_members=100)
    folder.unpack(str(target), stream.getvalue())
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*"))
    assert found == ["d", "d/e", "d/f.txt", "run.sh", "sparse"]  # neither link nor FIFO
    assert (target / "sparse").read_bytes() == (tree / "sparse").read_bytes()
    assert os.access(target / "run.sh", os.X_OK)
    with pytest.raises(folder.RefusedError, match="more than 100 bytes"):
        folder.pack(str(tree), io.BytesIO(), 100)


def test_a_copy_keeps_links_and_holes(tree, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    folder.copy(str(tree), str(target))
    assert os.readlink(target / "link") == "/etc/passwd"
    assert (target / "sparse").read_bytes() == (tree / "sparse").read_bytes()
    assert (target / "sparse").stat().st_blocks < 100
    assert not (target / "fifo").exists()
    assert (target / "run.sh").stat().st_mode & 0o777 == 0o755


def test_nothing_is_read_or_written_through_links(tree, tmp_path):
    (tree / "up").symlink_to(tmp_path)
    for path in ("link", "up/source/run.sh", "fifo", "d", "missing"):
        with pytest.raises(folder.RefusedError, match="cannot read"):
            os.close(folder.open_to_read(str(tree), path))
    for path in ("link", "up/x", "d/f.txt/x", "d"):
        with pytest.raises(folder.RefusedError, match="cannot write"):
            folder.write(str(tree), path, b"x")
    assert not (tmp_path / "x").exists()
    folder.write(str(tree), "new/folders/x", b"y")
    assert (tree / "new/folders/x").read_bytes() == b"y"


def test_entries_are_told_by_kind_and_in_order(tree):
    found = folder.entries(str(tree), ".", 100)
    assert [(path, kind) for path, kind, _ in found] == [
        ("d", "folder"), ("d/e", "folder"), ("d/f.txt", "file"), ("fifo", "other"), ("link", "link"),
        ("run.sh", "file"), ("sparse", "file"),
    ]  # fmt: skip
    assert [entry[0] for entry in folder.entries(str(tree), "d", 100)] == ["d/e", "d/f.txt"]
    with pytest.raises(folder.RefusedError, match="more than 3"):
        folder.entries(str(tree), ".", 3)


def fill(fd):
    while True:
        os.write(fd, b"x" * 60_000)


async def test_a_stream_keeps_the_beginning_and_rests_after_a_flood():
    floods: list[int] = []
    capture = Capture(10, 1000, lambda: floods.append(1))
    writing = os.dup(capture.writing)
    os.set_blocking(writing, False)
    capture.listen()
    os.write(writing, b"0123456789abc")
    await asyncio.sleep(0.05)
    assert capture.take() == (b"0123456789", True)
    os.write(writing, b"next")
    assert capture.take() == (b"next", False)
    capture.rest()
    for _ in range(40):
        os.write(writing, b"x" * 60_000)
        await asyncio.sleep(0.005)
        if floods and not capture._is_listening:
            break
    assert floods == [1]
    with pytest.raises(BlockingIOError):  # nobody reads any more
        fill(writing)
    capture.wake()
    await asyncio.sleep(0.05)
    os.write(writing, b"x")
    os.close(writing)
    capture.close()
