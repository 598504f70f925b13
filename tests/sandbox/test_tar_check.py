"""Archives that a hostile program, or a careless caller, could hand over."""

import io
import tarfile

import pytest

from turngym.errors import ProgramError
from turngym.sandbox.tar_check import Member, check_tar, max_tar_bytes, pack_tar

LIMITS = {"max_bytes": 1000, "max_members": 5}


def archive(*members: tuple[str, bytes, dict[str, object]], format: int = tarfile.GNU_FORMAT) -> bytes:
    target = io.BytesIO()
    with tarfile.open(mode="w", fileobj=target, format=format) as tar:
        for name, content, fields in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(content))
    return target.getvalue()


def test_files_and_folders_come_back_as_they_were_packed() -> None:
    members = [
        Member("d", None, 0o755),
        Member("d/f", b"content", 0o644),
        Member("long/" * 40 + "x", b"", 0o600),
        Member("\udcff\n", b"y", 0o644),
    ]
    assert check_tar(pack_tar(members), **LIMITS) == members
    assert check_tar(pack_tar([]), **LIMITS) == []


def test_set_user_bits_and_owners_are_dropped() -> None:
    data = archive(("x", b"", {"mode": 0o6777, "uid": 0, "uname": "root"}))
    assert check_tar(data, **LIMITS) == [Member("x", b"", 0o777)]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("x", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"})], "no regular file"),
        ([("x", b"", {"type": tarfile.LNKTYPE, "linkname": "y"})], "no regular file"),
        ([("x", b"", {"type": tarfile.FIFOTYPE})], "no regular file"),
        ([("x", b"", {"type": tarfile.CHRTYPE, "devmajor": 1})], "no regular file"),
        ([("x", b"", {"type": tarfile.BLKTYPE})], "no regular file"),
        ([("x", b"", {"type": tarfile.CONTTYPE})], "no regular file"),
        ([("/etc/passwd", b"", {})], "absolute"),
        ([("../x", b"", {})], "wanted a path below"),
        ([("a/../../x", b"", {})], "wanted a path below"),
        ([("x" * 5000, b"", {})], "too long"),
        ([("x", b"1", {}), ("./x", b"2", {})], "twice"),
        ([("x", b"1", {}), ("x/y", b"2", {})], "as a file and as a folder"),
        ([("x/y", b"1", {}), ("x", b"2", {})], "as a file and as a folder"),
        ([(".", b"1", {})], "no folder"),
        ([("x", bytes(600), {}), ("y", bytes(600), {})], "more than 1,000 bytes"),
        ([(str(number), b"", {}) for number in range(6)], "5 files and folders"),
    ],
)
def test_what_is_refused(members: list[tuple[str, bytes, dict[str, object]]], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        check_tar(archive(*members), **LIMITS)


def test_sparse_files_are_refused() -> None:
    target = io.BytesIO()
    with tarfile.open(mode="w", fileobj=target, format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("x")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "99999999"}
        content = b"1\n0\n512\n".ljust(512, b"\0") + bytes(512)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    with pytest.raises(ProgramError):
        check_tar(target.getvalue(), max_bytes=1 << 30, max_members=5)


@pytest.mark.parametrize("length", [0, 100, 512, 513, 1000, 1500])
def test_an_archive_that_is_cut_off_is_refused_or_holds_less(length: int) -> None:
    data = archive(("x", bytes(600), {}), ("y", b"", {}))[:length]
    with pytest.raises(ProgramError):
        check_tar(data, **LIMITS)


def test_junk_is_refused() -> None:
    for data in (b"junk" * 1000, b"\x1f\x8b" + bytes(600), bytes([255]) * 1024):
        with pytest.raises(ProgramError, match="tar archive"):
            check_tar(data, **LIMITS)


def test_the_longest_archive_within_the_limits() -> None:
    names = ["/".join("y" * 100 for _ in range(40)) + str(number) for number in range(5)]
    data = pack_tar([Member(name, bytes(200), 0o644) for name in names])
    assert len(data) <= max_tar_bytes(**LIMITS)
    assert len(check_tar(data, **LIMITS)) == 5
