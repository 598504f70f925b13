"""Set up `.venv` in this clone from the lock files, installing only what is missing.

Needs nothing but Python's standard library. uv does the installing, because it is ten times as fast as pip; it is told
pip's own settings (index, find-links, certificates), which it does not read by itself.
"""

from __future__ import annotations  # an old Python must get as far as our own message

import argparse
import ast
import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
UV_REQUIREMENT = "uv==0.13.9"
OLDEST_PYTHON = (3, 11)

# pip setting -> uv's variable for it, and what separates several values there
UV_NAMES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
}


class SetupError(Exception):
    """The set-up cannot go on; the message says what is missing and how to get it."""


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"[set-up] {text}", flush=True)


def check_machine() -> None:
    """Refuse a Python or a platform that the lock files do not serve."""
    if sys.version_info < OLDEST_PYTHON:
        raise SetupError(
            f"wanted Python 3.11 or newer, got {platform.python_version()} ({sys.executable}). On Debian 12 or "
            "Ubuntu 24.04 and later `apt-get install python3 python3-venv` brings one; if you have another, name it: "
            "`make demo PYTHON=python3.12`."
        )
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise SetupError(
            f"wanted Linux on x86_64, which the lock files are for, got {sys.platform} on {platform.machine()}. "
            'Elsewhere install by hand, without a lock: `pip install -e ".[demo,dev]"`.'
        )


def stamp_text(locks: list[Path]) -> str:
    """Return a digest of everything that decides what `.venv` holds."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {ROOT} {UV_REQUIREMENT}".encode())
    for file in [*locks, ROOT / "pyproject.toml"]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def missing_system_packages() -> dict[str, str]:
    """Return the Debian packages that are needed and not there, each with the reason."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    missing: dict[str, str] = {}
    if not VENV_PYTHON.exists():
        try:
            import ensurepip  # noqa: F401  Debian ships it apart from Python
        except ImportError:
            missing[f"python{version}-venv"] = "makes the virtual environment"
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        missing["libnuma1"] = "vLLM's CPU build loads libnuma.so.1"
    if not any(VENV.glob("lib/python*/site-packages/pycosat*")):  # comes as C source only
        if shutil.which("cc") is None and shutil.which("gcc") is None:
            missing["gcc"] = missing["libc6-dev"] = "compiles pycosat, which reasoning_gym imports"
        if not Path(sysconfig.get_path("include"), "Python.h").exists():
            missing[f"python{version}-dev"] = "Python.h, to compile pycosat, which reasoning_gym imports"
    return missing


def install_system_packages() -> None:
    """Install the missing Debian packages when we are root; else say which they are."""
    missing = missing_system_packages()
    if not missing:
        return
    for name, reason in missing.items():
        say(f"missing system package {name}: {reason}")
    command = f"apt-get install {' '.join(missing)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SetupError(f"system packages are missing; run `sudo apt-get update && sudo {command}` and try again.")
    say(command)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # A failed update may still leave lists that serve; the install then decides.
    subprocess.run(["apt-get", "update", "-qq"], env=environment)
    subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], env=environment)
    left = missing_system_packages()
    if left:
        raise SetupError(f"apt-get (above) did not bring {', '.join(left)}; install them by hand and try again.")


def venv_version() -> str | None:
    """Return the Python version of `.venv`, or None when it has no Python that starts."""
    command = [str(VENV_PYTHON), "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def make_venv() -> None:
    """Create `.venv`, or make it anew when it belongs to another Python."""
    wanted = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = venv_version()
    if found == wanted:
        return
    if VENV.exists():
        say(f"making .venv anew: it is of Python {found or 'none that starts'}, and {wanted} runs this")
        shutil.rmtree(VENV)
    else:
        say(f"making .venv with Python {platform.python_version()}")
    if subprocess.run([sys.executable, "-m", "venv", str(VENV)]).returncode != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        raise SetupError("python -m venv (above) failed; `apt-get install python3-venv` is the usual remedy.")


def pip_settings() -> dict[str, list[str]]:
    """Return pip's settings as pip itself resolves them: the environment before `[install]` before `[global]`."""
    command = [str(VENV_PYTHON), "-m", "pip", "config", "list"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return parse_pip_settings(listing)


def parse_pip_settings(listing: str) -> dict[str, list[str]]:
    """Read the lines of `pip config list`, such as `global.index-url='...'`."""
    settings: dict[str, list[str]] = {}
    for section in ("global", "install", ":env:"):
        for name, value in re.findall(rf"^{section}\.([a-z-]+)=(.+)$", listing, re.MULTILINE):
            settings[name] = str(ast.literal_eval(value)).split()
    return settings


def uv_environment(settings: dict[str, list[str]], environment: dict[str, str]) -> dict[str, str]:
    """Return `environment` with pip's settings added in uv's names; uv's own variables win where both are set."""
    result = dict(environment)
    for name, values in settings.items():
        if name not in UV_NAMES or not values:
            continue
        variable, separator = UV_NAMES[name]
        if name == "find-links" and environment.get(variable):
            values = [*environment[variable].split(separator), *values]  # folders add up, nothing is overruled
        elif environment.get(variable):
            continue
        result[variable] = separator.join(dict.fromkeys(values))
    # As pip does: the best version of all indexes, not the first index that knows the name.
    result.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return result


def uv_flags(settings: dict[str, list[str]]) -> list[str]:
    """Return the flags for those of pip's settings that uv has no variable for."""
    return ["--no-index"] if settings.get("no-index", ["0"])[0].lower() in {"1", "true", "yes", "on"} else []


def run_uv(arguments: list[str], environment: dict[str, str], quiet: bool = False) -> subprocess.CompletedProcess[str]:
    """Run `uv pip install` on `.venv`; when quiet, keep its output instead of showing it."""
    command = [str(VENV / "bin" / "uv"), "pip", "install", "--python", str(VENV_PYTHON), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=quiet, text=True)


def torch_flags(version: str, given: list[str], environment: dict[str, str]) -> list[str]:
    """Return the flags with which uv finds this torch: those given (folders, indexes), or with PyTorch's CPU index."""
    said = ""
    for flags in (given, [*given, "--torch-backend", "cpu"]):
        tried = run_uv(["--dry-run", "--no-deps", *flags, f"torch=={version}"], environment, quiet=True)
        if tried.returncode == 0:
            return flags
        said = tried.stderr.strip()
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    wheel = f"torch-{version}-{tag}-{tag}-manylinux_2_28_{platform.machine()}.whl"
    raise SetupError(
        f"wanted PyTorch's CPU wheel {wheel}; no folder (PIP_FIND_LINKS, UV_FIND_LINKS) and no index that "
        "pip or uv is told of has it, and PyTorch's own index for CPU wheels was not reached. Where there is "
        "network, download that file from it (the page 'Get Started' of PyTorch's site names the index: choose Linux, "
        f"Pip, CPU), put it into a folder, and run `PIP_FIND_LINKS=/that/folder make ...`. uv said:\n{said}"
    )


def install(locks: list[Path]) -> None:
    """Install uv, what the lock files name, and this clone itself."""
    if not (VENV / "bin" / "uv").exists():
        say(f"pip install {UV_REQUIREMENT}")
        command = [str(VENV_PYTHON), "-m", "pip", "install", "--quiet", UV_REQUIREMENT]
        if subprocess.run(command).returncode != 0:
            raise SetupError(f"pip (above) could not install {UV_REQUIREMENT}; is a package index reachable?")
    settings = pip_settings()
    environment = uv_environment(settings, dict(os.environ))
    (torch_version,) = re.findall(r"^torch==(\S+)$", locks[0].read_text(), re.MULTILINE)
    flags = torch_flags(torch_version, uv_flags(settings), environment)
    say(f"uv pip install, from {' and '.join(str(lock.relative_to(ROOT)) for lock in locks)}")
    # The lock files are complete, so dependencies are not followed: that is what leaves torchvision and triton out.
    # Compiled now, since where Python may write no bytecode, as in many containers, every process would do it again.
    requirements = [part for lock in locks for part in ("-r", str(lock))]
    if run_uv(["--no-deps", "--compile-bytecode", *flags, *requirements], environment).returncode != 0:
        raise SetupError("uv (above) could not install the lock files; what is there stays, so just try again.")
    say("uv pip install -e . (this clone)")
    if run_uv(["--no-deps", "--no-build-isolation", "-e", "."], environment, quiet=True).returncode != 0:
        raise SetupError("uv could not install this clone; `.venv/bin/uv pip install --no-deps -e .` shows why.")


def set_up(dev: bool) -> None:
    """Bring `.venv` up to date; return at once when it is."""
    check_machine()
    locks = [ROOT / "requirements" / name for name in (["cpu.txt", "dev.txt"] if dev else ["cpu.txt"])]
    stamp = VENV / ("turngym-dev.stamp" if dev else "turngym-cpu.stamp")
    text = stamp_text(locks)
    if stamp.exists() and stamp.read_text() == text and venv_version() is not None:
        return
    install_system_packages()
    make_venv()
    install(locks)
    stamp.write_text(text)
    say("done")


def lock() -> None:
    """Resolve pyproject.toml into the lock files, keeping the versions that still fit."""
    settings = pip_settings()
    environment = uv_environment(settings, dict(os.environ))
    overrides = ["--override", "requirements/overrides.txt", "--python-version", "3.11"]
    looks = ["--no-annotate", "--custom-compile-command", "make lock", "--quiet"]
    for extra, name, constraint in (("demo", "cpu.txt", []), ("dev", "dev.txt", ["-c", "requirements/cpu.txt"])):
        say(f"uv pip compile: requirements/{name}")
        command = [str(VENV / "bin" / "uv"), "pip", "compile", "pyproject.toml", "--extra", extra, *constraint]
        command += [*uv_flags(settings), *overrides, *looks, "-o", f"requirements/{name}"]
        tries = [command, [*command, "--torch-backend", "cpu"]]
        if all(subprocess.run(tried, cwd=ROOT, env=environment).returncode != 0 for tried in tries):
            raise SetupError(f"uv (above) could not resolve the extra {extra!r} of pyproject.toml.")


def main() -> int:
    """Read the command line and set up."""
    parser = argparse.ArgumentParser(description="Set up .venv in this clone, installing only what is missing.")
    parser.add_argument("--dev", action="store_true", help="also what tests and checks need")
    parser.add_argument("--lock", action="store_true", help="make the lock files anew instead, with the uv in .venv")
    arguments = parser.parse_args()
    try:
        if arguments.lock:
            lock()
        else:
            set_up(arguments.dev)
    except SetupError as error:
        print(f"[set-up] error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
