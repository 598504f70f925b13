"""The set-up program, the lock files, the Makefile: what a fresh clone relies on."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def setup_env(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The set-up program as a module, its `.venv` moved to an empty place."""
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "scripts" / "setup_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "VENV_PYTHON", tmp_path / ".venv" / "bin" / "python")
    return module


def put_program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def locked(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def all_requirements(extra: str) -> list[Requirement]:
    """The requirements of an extra, those on our own extras followed."""
    found = []
    for text in PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == "turngym":
            found += [inner for other in sorted(requirement.extras) for inner in all_requirements(other)]
        else:
            found.append(requirement)
    return found


@pytest.mark.parametrize(("extra", "files"), [("demo", ["cpu.txt"]), ("dev", ["cpu.txt", "dev.txt"])])
def test_locks_hold_what_the_extras_ask_for(extra: str, files: list[str]) -> None:
    versions: dict[str, str] = {}
    for file in files:
        versions |= locked(file)
    for requirement in [*map(Requirement, PROJECT["dependencies"]), *all_requirements(extra)]:
        version = versions[canonical(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement} against {version}: make lock"


def test_the_two_locks_agree_and_leave_out_what_breaks_or_is_not_needed() -> None:
    cpu, dev = locked("cpu.txt"), locked("dev.txt")
    assert {name: version for name, version in dev.items() if cpu.get(name, version) != version} == {}
    overridden = re.findall(r"^([a-z-]+);", (ROOT / "requirements" / "overrides.txt").read_text(), re.MULTILINE)
    assert {"torchvision", "torchaudio", "triton"} <= set(overridden)
    assert not set(overridden) & (set(cpu) | set(dev))


def test_pip_settings_follow_pips_own_precedence(setup_env: ModuleType) -> None:
    listing = (
        ":env:.find-links='/wheels /more'\n:env:.index-url='env-index'\nglobal.cert='/ca.pem'\n"
        "global.find-links='/old'\nglobal.index-url='global-index'\ninstall.index-url='install-index'\n"
    )
    assert setup_env.parse_pip_settings(listing) == {
        "find-links": ["/wheels", "/more"],
        "index-url": ["env-index"],
        "cert": ["/ca.pem"],
    }


def test_pip_settings_reach_uv_and_uvs_own_win(setup_env: ModuleType) -> None:
    settings = {"index-url": ["a"], "extra-index-url": ["b", "c"], "find-links": ["/w"], "timeout": ["9"]}
    assert setup_env.uv_environment(settings, {"UV_FIND_LINKS": "/u", "UV_HTTP_TIMEOUT": "60", "HOME": "/h"}) == {
        "HOME": "/h",
        "UV_DEFAULT_INDEX": "a",
        "UV_INDEX": "b c",
        "UV_FIND_LINKS": "/u,/w",
        "UV_HTTP_TIMEOUT": "60",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert setup_env.uv_flags({"no-index": ["1"]}) == ["--no-index"]
    assert setup_env.uv_flags({"no-index": ["false"]}) == setup_env.uv_flags({}) == []


def test_an_old_python_is_told_what_to_do(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    with pytest.raises(setup_env.SetupError, match=r"wanted Python 3\.11 or newer.*PYTHON=python3"):
        setup_env.check_machine()


def test_another_platform_is_told_what_to_do(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_env.platform, "machine", lambda: "aarch64")
    with pytest.raises(setup_env.SetupError, match=r"got linux on aarch64.*pip install -e"):
        setup_env.check_machine()


@pytest.fixture
def no_libnuma(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without libnuma until the file returned exists."""
    installed = tmp_path / "libnuma-installed"

    def load(name: str) -> None:
        if not installed.exists():
            raise OSError(name)

    monkeypatch.setattr(setup_env.ctypes, "CDLL", load)
    return installed


def test_a_missing_system_package_is_named(
    setup_env: ModuleType, no_libnuma: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(setup_env.SetupError, match=r"sudo apt-get install .*libnuma1"):
        setup_env.install_system_packages()


def test_root_gets_the_missing_system_package(
    setup_env: ModuleType, no_libnuma: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    put_program(tmp_path / "bin" / "apt-get", f'case "$*" in install*libnuma1*) touch {no_libnuma};; esac')
    setup_env.install_system_packages()
    assert setup_env.missing_system_packages() == {}
    no_libnuma.unlink()
    put_program(tmp_path / "bin" / "apt-get", "exit 100")
    with pytest.raises(setup_env.SetupError, match="did not bring libnuma1"):
        setup_env.install_system_packages()


def test_torch_comes_from_what_pip_knows_or_else_from_pytorchs_index(setup_env: ModuleType) -> None:
    uv = setup_env.VENV / "bin" / "uv"
    put_program(uv, "exit 0")
    assert setup_env.torch_flags("2.13.0+cpu", ["--no-index"], {}) == ["--no-index"]
    put_program(uv, 'case "$*" in *--torch-backend*cpu*) exit 0;; esac; exit 1')
    assert setup_env.torch_flags("2.13.0+cpu", [], {}) == ["--torch-backend", "cpu"]


def test_a_missing_torch_is_named_to_the_file(setup_env: ModuleType) -> None:
    put_program(setup_env.VENV / "bin" / "uv", "echo no such host >&2; exit 1")
    with pytest.raises(setup_env.SetupError, match=r"(?s)PIP_FIND_LINKS=.*no such host") as caught:
        setup_env.torch_flags("2.13.0+cpu", [], {})
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert f"torch-2.13.0+cpu-{tag}-{tag}-manylinux_2_28_x86_64.whl" in str(caught.value)


def test_set_up_works_once_and_again_only_when_a_lock_changes(
    setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("requirements/cpu.txt", "requirements/dev.txt", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    monkeypatch.setattr(setup_env, "install_system_packages", lambda: None)
    installs: list[list[str]] = []
    monkeypatch.setattr(setup_env, "install", lambda locks: installs.append([lock.name for lock in locks]))
    put_program(setup_env.VENV_PYTHON, f'exec {sys.executable} "$@"')
    for _ in range(2):
        setup_env.set_up(dev=False)
        setup_env.set_up(dev=True)
    assert installs == [["cpu.txt"], ["cpu.txt", "dev.txt"]]
    with (tmp_path / "requirements" / "dev.txt").open("a") as lock:
        lock.write("# changed\n")
    setup_env.set_up(dev=False)
    setup_env.set_up(dev=True)
    assert installs[2:] == [["cpu.txt", "dev.txt"]]


@pytest.mark.slow
def test_a_venv_of_another_python_is_made_anew(setup_env: ModuleType) -> None:
    put_program(setup_env.VENV_PYTHON, "echo 3.9")
    setup_env.make_venv()
    assert setup_env.venv_version() == f"{sys.version_info[0]}.{sys.version_info[1]}"


def test_make_targets_set_up_first_and_ci_runs_test_before_soak(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAKEFLAGS", "MAKELEVEL", "PYTHON", "ARGS"):  # of the make that may run these tests
        monkeypatch.delenv(name, raising=False)
    for target, flag in (("demo", ""), ("test", "--dev"), ("check", "--dev"), ("docs", "--dev"), ("soak", "--dev")):
        plan = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert plan.splitlines()[0] == f"python3 scripts/setup_env.py {flag}".strip(), target
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if line.startswith("make")] == ["make test", "make soak"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_fresh_copy_sets_itself_up_and_answers(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    left_out = shutil.ignore_patterns(
        ".*_cache", ".venv", ".git", ".gpu", ".scratch", "runs", "*.egg-info", "__pycache__"
    )
    shutil.copytree(ROOT, clone, symlinks=True, ignore=left_out)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VIRTUAL_ENV", "PYTEST"))}
    command = [sys.executable, "scripts/setup_env.py"]
    subprocess.run(command, cwd=clone, env=environment, check=True, timeout=900)
    answer = subprocess.run([clone / ".venv/bin/turngym", "--help"], env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "train" in answer.stdout
    program = "import torch, vllm, ray, deepspeed, reasoning_gym, turngym; print(torch.__version__, turngym.__file__)"
    seen = subprocess.run(
        [clone / ".venv/bin/python", "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert seen.stdout.split()[-2:] == [locked("cpu.txt")["torch"], str(clone / "src/turngym/__init__.py")], seen.stderr
    again = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert again.stdout == ""


@pytest.mark.parametrize(("target", "chosen"), [("test", "not soak"), ("check", "not slow and not soak")])
@pytest.mark.parametrize("status", [0, 1, 5])
def test_make_runs_the_tests_on_all_cores_and_ends_as_they_do(monkeypatch, tmp_path, target, chosen, status):
    for name in ("MAKEFLAGS", "MAKELEVEL"):  # of the make that may run these tests
        monkeypatch.delenv(name, raising=False)
    put_program(tmp_path / "python", f'echo "$@" >> {tmp_path}/runs\nexit {status}')
    for name in ("ruff", "mypy", "pyright"):
        put_program(tmp_path / name, "exit 0")
    words = ["make", "-C", str(ROOT), "-o", "setup-dev", target, f"BIN={tmp_path}", "ARGS=tests/envs"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) is (status == 0), done.stderr
    runs = (tmp_path / "runs").read_text().splitlines()
    assert runs == [f"-m pytest -q -n auto --dist loadgroup -m {chosen} tests/envs"]
