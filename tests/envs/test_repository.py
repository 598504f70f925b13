"""A task's repository holds one commit, and no way to the fix that came later."""

import subprocess

import pytest

from turngym.envs.repository import HistoryAttempt, history_attempts, seal
from turngym.errors import ConfigError
from turngym.sandbox.local.backend import LocalSandbox
from turngym.sandbox.tar_check import check_tar

FIX = "def secret_fix_name(): return 42"


def git(folder, *words):
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A base commit, and its fix in a later commit, on a branch, under a tag, in a stash, and in a dangling commit."""
    folder = tmp_path / "original"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "code.py").write_text("def broken(): ...\n")
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "run.sh").chmod(0o755)
    (folder / ".gitattributes").write_text("run.sh export-ignore\n")
    (folder / ".gitignore").write_text("kept.log\n")
    (folder / "kept.log").write_text("tracked in spite of it\n")
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-q", "-m", "base")
    (folder / "code.py").write_text("stashed: " + FIX + "\n")
    git(folder, "stash", "-q")
    (folder / "code.py").write_text(FIX + "\n")
    git(folder, "commit", "-qam", "fix")
    git(folder, "tag", "-a", "v2", "-m", "has " + FIX)
    git(folder, "branch", "later")
    git(folder, "commit", "-q", "--amend", "-m", "fix again")  # the first one dangles
    return folder


async def test_nothing_of_the_fix_is_to_be_found(repository):
    snapshot = seal(repository, "main~1")
    assert b"secret_fix_name" not in snapshot
    async with LocalSandbox(num_workers=1) as sandbox, await sandbox.open_session("bash", snapshot=snapshot) as session:

        async def answer(command):
            cell = await session.run_cell(command)
            return cell.out_text.strip(), cell.exit_code

        assert await answer("git rev-list --all --count") == ("1", 0)
        assert await answer("git log --all --format=%s -S secret_fix_name") == ("", 0)
        assert await answer("git log --format=%s") == ("The task", 0)
        for command in (
            "git show origin/main:code.py", "git show main~0:nothing", "git show v2", "git show later",
            "git stash show -p", "git show main@{1}", "git cat-file -p ORIG_HEAD",
        ):  # fmt: skip
            assert (await answer(command))[1] != 0, command
        assert await answer("git fsck --lost-found --no-reflogs") == ("", 0)
        assert await answer("git remote; git tag; git for-each-ref --format='%(refname)'") == ("refs/heads/main", 0)
        assert await answer("ls .git/hooks .git/objects/info/alternates 2>/dev/null | wc -l") == ("0", 0)
        everything = "git cat-file --batch-all-objects --batch | grep -c secret_fix_name"
        assert (await answer(everything))[0] == "0"
        assert await answer("git status --porcelain") == ("", 0)
        assert await answer("./run.sh; cat kept.log") == ("ran\ntracked in spite of it", 0)
        fetched = await session.run_cell("git fetch https://example.com/repository.git main", timeout_s=5)
        assert fetched.ended != "ok"


def test_the_same_files_give_the_same_commit(repository, tmp_path):
    def commit_of(snapshot):
        members = check_tar(snapshot, max_bytes=10 << 20, max_members=1000)
        return next(member.content for member in members if member.path == ".git/refs/heads/main")

    before = git(repository, "rev-parse", "main")
    assert commit_of(seal(repository, "main~1")) == commit_of(seal(str(repository), "v2~1"))
    assert commit_of(seal(repository, "main~1")) != commit_of(seal(repository, "main"))
    assert git(repository, "rev-parse", "main") == before
    assert git(repository, "status", "--porcelain") == ""


def test_what_cannot_be_sealed_is_named(repository, tmp_path):
    with pytest.raises(ConfigError, match="git ls-tree failed"):
        seal(repository, "no_such_commit")
    with pytest.raises(ConfigError, match=r"failed in .*nowhere|no folder .*nowhere"):
        seal(tmp_path / "nowhere", "main")
    (repository / "link").symlink_to("/etc/passwd")
    git(repository, "add", "link")
    git(repository, "commit", "-qm", "link")
    with pytest.raises(ConfigError, match="holds a link, 'link'"):
        seal(repository, "main")


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("git log --all -S secret_fix_name", "git log"),
        ("cd /repo && git --no-pager -c color.ui=never log -p | head", "git log"),
        ("git -C . show origin/main:code.py", "git show"),
        ("/usr/bin/git reflog", "git reflog"),
        ("true;git fsck --lost-found", "git fsck"),
        ("git stash list", "git stash list"),
        ("git branch -a", "git branch -a"),
        ("git tag", "git tag"),
        ("git fetch origin pull/7/head", "git fetch"),
        ("git remote add up https://example.com/x.git", "git remote"),
        ("git diff origin/main -- code.py", "git diff origin/main"),
        ("git checkout HEAD~1 -- code.py", "git checkout HEAD~1"),
        ("git reset --hard ORIG_HEAD", "git reset ORIG_HEAD"),
        ("git checkout 7fcacd6", "git checkout 7fcacd6"),
        ("ls .git/objects", ".git/objects"),
        ("cat ./.git/packed-refs", "./.git/packed-refs"),
        ("GIT_DIR=/elsewhere git status", "GIT_DIR=/elsewhere"),
        ("import subprocess\nsubprocess.run(['git', 'log', '-p'])", "git log"),
        ("import os\nprint(os.popen('git show v2').read())", "git show"),
        ("from git import Repo", "import git"),
        ("import pygit2", "pygit2"),
        ("open('.git/HEAD').read()", ".git/HEAD"),
        ("pip download package==2.0", "pip download"),
        ("python -m pip download package", "pip download"),
        ("curl -L https://raw.githubusercontent.com/o/r/main/code.py", "githubusercontent.com"),
    ],
)
def test_attempts_to_reach_history_are_named(command, what):
    assert history_attempts(["ls", command, "pytest"]) == (HistoryAttempt(command, what),)


@pytest.mark.parametrize(
    "command",
    [
        "git status", "git diff", "git diff HEAD -- code.py", "git add -A && git commit -m 'fix it'", "git stash",
        "git checkout -- code.py", "git stash pop", "git branch mine", "git grep -n show", "git apply fix.patch",
        "cat .gitignore .gitattributes", "ls .github/workflows", "grep -rn --exclude-dir=.git name .",
        "find . -path ./.git -prune -o -name '*.py' -print", "rg -g '!.git/' name", "pip install -e .",
        "git diff | grep log", "echo legit log", "import math\nmath.log(2)", "", "git", "git -c",
        "print('digit', 'log')",
    ],
)  # fmt: skip
def test_work_in_the_one_commit_is_no_attempt(command):
    assert history_attempts([command]) == ()


@pytest.mark.slow
@pytest.mark.timeout(60)  # reading each word's rest anew would take hours
@pytest.mark.parametrize("word", ["git -c ", "git x ", "git -git ", "/.git_", "git diff a ", "\n;git"])
def test_long_commands_take_no_time(word):
    assert history_attempts([word * 20_000]) == ()
