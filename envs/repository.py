"""Repositories for tasks that are to be solved in one: the work tree of one commit, and nothing of what came after it.

The fix of such a task usually is a later commit, and attempts have found it in branches, tags, reflogs and objects that
nothing refers to. What is made here holds one commit of its own, so that there is nothing to be found.
"""

import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..errors import ConfigError, MissingPackageError

_GIT_S = 120.0
_WHO = {
    "GIT_AUTHOR_NAME": "task",
    "GIT_AUTHOR_EMAIL": "task@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "task",
    "GIT_COMMITTER_EMAIL": "task@localhost",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
}


def seal(repository: str | Path, commit: str) -> bytes:
    """Return a snapshot for `Sandbox.open_session`: a commit's files in a new repository whose only commit they are.

    No history, ref, reflog, remote, hook, alternate or unreferenced object of the original comes along; the date and
    the author of the commit are always the same, so the same files give the same commit.

    Args:
        repository: A folder with a git repository; it is not changed.
        commit: Whatever git takes for a commit.

    Raises:
        ConfigError: There is no such repository or commit, or it holds links or submodules, which snapshots cannot.
        MissingPackageError: git is not installed.
    """
    source = Path(repository).resolve()
    with tempfile.TemporaryDirectory(prefix="turngym-repository-") as scratch:
        tree = Path(scratch, "tree")
        tree.mkdir()
        _check_entries(_git(source, ["ls-tree", "-r", "-z", f"{commit}^{{commit}}"]))
        index = {"GIT_INDEX_FILE": f"{scratch}/index"}
        _git(source, ["read-tree", f"{commit}^{{commit}}"], index)
        _git(source, ["checkout-index", "--all", f"--prefix={tree}/"], index)
        _git(tree, ["init", "--quiet", "--initial-branch=main", "--template="])
        _git(tree, ["add", "--all", "--force"])
        _git(tree, ["commit", "--quiet", "--allow-empty", "--no-verify", "--message=The task"], _WHO)
        _git(tree, ["reflog", "expire", "--expire=now", "--all"])
        return _archive(tree)


def _check_entries(listing: bytes) -> None:
    for entry in listing.split(b"\0"):
        mode, _, rest = entry.partition(b" ")
        if mode in (b"120000", b"160000"):
            name = rest.partition(b"\t")[2].decode(errors="replace")
            kind = "a link" if mode == b"120000" else "a submodule"
            raise ConfigError(f"the repository holds {kind}, {name!r}, which a snapshot cannot; give a commit without")


def _git(folder: Path, words: Sequence[str], more_environment: dict[str, str] | None = None) -> bytes:
    # Neither the user's configuration nor the system's; the folder may belong to someone else.
    environment = {"PATH": os.environ.get("PATH", os.defpath), "GIT_CONFIG_NOSYSTEM": "1", "HOME": os.devnull}
    command = ["git", "-C", str(folder), "-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", *words]
    try:
        done = subprocess.run(
            command, capture_output=True, env=environment | (more_environment or {}), timeout=_GIT_S, check=False
        )
    except FileNotFoundError as error:
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {str(folder)!r}; give that of a git repository") from error
        raise MissingPackageError("repositories are made with git, which is not installed") from error
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip()
        raise ConfigError(f"git {words[0]} failed in {str(folder)!r}: {why}")
    return done.stdout


def _archive(tree: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(tree.rglob("*")):
            info = archive.gettarinfo(path, str(path.relative_to(tree)))
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            if path.is_dir():
                archive.addfile(info)
            else:
                with path.open("rb") as file:
                    archive.addfile(info, file)
    return buffer.getvalue()
