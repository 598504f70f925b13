"""Repositories for tasks that are to be solved in one: the work tree of one commit, and nothing of what came after it.

The fix of such a task usually is a later commit, and attempts have found it in branches, tags, reflogs and objects that
nothing refers to. What is made here holds one commit of its own, so that there is nothing to be found; what was run
tells who looked for it all the same.
"""

import io
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class HistoryAttempt:
    """A command or cell that looked for more than the task's one commit."""

    command: str
    what: str
    """The words that show it, such as `git log`."""


def history_attempts(commands: Iterable[str]) -> tuple[HistoryAttempt, ...]:
    """Name those of an episode's shell commands or Python cells that tried to reach a repository's history.

    That is: git's commands for history and remotes, others of its commands with a revision that is not HEAD, paths
    within `.git`, libraries that read them, `pip download`, and addresses of forges and package indices. Only words are
    read: a command in a comment counts, and one that hides its words does not.
    """
    found = ((command, _reach(command)) for command in commands)
    return tuple(HistoryAttempt(command, what) for command, what in found if what is not None)


_WORD = re.compile(r"[;|&\n]+|[^\s;|&\"'`,()\[\]]+")
_HISTORY = {
    *("annotate", "bisect", "blame", "bundle", "cat-file", "cherry", "cherry-pick", "clone", "describe", "fetch"),
    *("for-each-ref", "fsck", "log", "ls-remote", "name-rev", "pull", "reflog", "remote", "rev-list", "shortlog"),
    *("show", "show-branch", "show-ref", "tag", "unpack-objects", "verify-pack", "whatchanged"),
}
_MOST_ARGUMENTS = 64  # that are read of one command, for a long text may be all one
_WITH_VALUE = {"-c", "-C", "--git-dir", "--work-tree"}
_LISTING = {"stash": {"list", "show"}, "branch": {"-a", "-r", "-av", "-avv", "-va", "--all", "--remotes"}}
_REVISION = re.compile(r"[~^]|@\{|^(origin|upstream|refs|tags|remotes)/|^(FETCH|ORIG|MERGE)_HEAD\b|^[0-9a-f]{7,40}\b")
_IN_GIT = re.compile(r"(^|[/=:])\.git(/|$)|^GIT_(DIR|ALTERNATE|OBJECT)")
_LEFT_OUT_AFTER = {"-path", "-wholename", "-name", "--exclude", "--exclude-dir", "--ignore"}
_LEFT_OUT = ("!", "--exclude", "--ignore")  # a search that spares .git
_LIBRARY = re.compile(r"^(pygit2|dulwich)\b")
_FORGE = re.compile(r"\b(github\.com|githubusercontent\.com|gitlab\.com|bitbucket\.org|pypi\.org|pythonhosted\.org)\b")


def _reach(command: str) -> str | None:
    words = _WORD.findall(command)
    previous = ""
    for index, word in enumerate(words):
        if word == "git" or word.endswith("/git"):
            what = "import git" if previous in ("import", "from") else _git_reach(words, index + 1)
        elif word == "download" and previous in ("pip", "pip3"):
            what = "pip download"
        else:
            what = _word_reach(word, previous)
        if what is not None:
            return what
        previous = word
    return None


def _word_reach(word: str, previous: str) -> str | None:
    if _IN_GIT.search(word):
        is_spared = previous in _LEFT_OUT_AFTER or word.startswith(_LEFT_OUT)
        return None if is_spared else word
    found = _LIBRARY.search(word) or _FORGE.search(word)
    return found[0] if found else None


def _git_reach(words: Sequence[str], start: int) -> str | None:
    arguments = words[start : start + _MOST_ARGUMENTS]
    index = 0
    while index < len(arguments) and arguments[index].startswith("-"):
        index += 2 if arguments[index] in _WITH_VALUE else 1
    name = arguments[index] if index < len(arguments) else ""
    if name in _HISTORY:
        return f"git {name}"
    for word in arguments[index + 1 :]:
        if word[0] in ";|&\n" or word == "--":
            break
        if word in _LISTING.get(name, ()) or (not word.startswith("-") and _REVISION.search(word)):
            return f"git {name} {word}"
    return None
