"""The runner's file work, on a folder of the test's own."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from turngym.sandbox.docker.inside import files
from turngym.sandbox.docker.inside.files import RefusedError


def test_write_makes_folders_and_goes_on(tmp_path: Path) -> None:
    files.write(str(tmp_path), "a/b/c", b"one ", 0o640, appends=False)
    files.write(str(tmp_path), "a/b/c", b"two", 0o640, appends=True)
    assert (tmp_path / "a/b/c").read_bytes() == b"one two"
    files.write(str(tmp_path), "a/b/c", b"new", 0o640, appends=False)
    assert (tmp_path / "a/b/c").read_bytes() == b"new"


@pytest.mark.parametrize("path", ["link/x", "file/x", "d/link", "../x", "/".join("x" * 102)])
def test_write_follows_no_link(tmp_path: Path, path: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "d").mkdir(parents=True)
    outside.mkdir()
    (root / "file").write_text("")
    (root / "link").symlink_to(outside)
    (root / "d" / "link").symlink_to(outside / "x")
    with pytest.raises((OSError, RefusedError)):
        files.write(str(root), path, b"x", 0o644, appends=False)
    assert list(outside.iterdir()) == []


def test_a_deep_tree_is_refused_not_walked(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    with pytest.raises(RefusedError, match="deep"):
        files.entries(str(tmp_path), ".", 1000)


def test_entries_and_archive(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(b"content")
    (tmp_path / "l").symlink_to("/etc")
    os.mkfifo(tmp_path / "p")
    listed = files.entries(str(tmp_path), ".", 10)
    assert [(path, kind, size) for path, kind, size, _ in listed] == [
        ("d", "folder", 0),
        ("d/f", "file", 7),
        ("l", "link", 0),
        ("p", "other", 0),
    ]
    with pytest.raises(RefusedError, match="more than 3"):
        files.entries(str(tmp_path), ".", 3)
    target = io.BytesIO()
    files.archive(str(tmp_path), 10, 7, target)
    with tarfile.open(fileobj=io.BytesIO(target.getvalue())) as tar:
        assert tar.getnames() == ["d", "d/f"]
    with pytest.raises(RefusedError, match="7 bytes, and the disk has 6"):
        files.archive(str(tmp_path), 10, 6, io.BytesIO())


def test_chunks_hand_on_everything_once() -> None:
    sent: list[bytes] = []
    chunks = files.Chunks(sent.append)
    data = bytes(range(256)) * 3000
    for start in range(0, len(data), 100_001):
        chunks.write(data[start : start + 100_001])
    chunks.close()
    assert b"".join(sent) == data
    assert {len(chunk) for chunk in sent[:-1]} == {files.CHUNK_BYTES}
