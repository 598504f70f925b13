"""The packages behind collections that no other environment here has: their tests, run where these are installed."""

import importlib.util
import os
import site
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import turngym

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PACKAGES = ROOT / "requirements" / "collections.txt"
MODULES = ("test_gem.py", "test_openenv.py", "test_verifiers.py")
REQUIRED = "TURNGYM_REQUIRE_COLLECTIONS"
INSTALL_S, RUN_S = 240, 240


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Make an environment with the packages, and with all that this one has behind them."""
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    (own,) = folder.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({entry!r})" for entry in site.getsitepackages()]
    (own / "what_is_here.pth").write_text("\n".join(lines))
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    if importlib.util.find_spec("uv") is not None:
        command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    try:
        command += ["--no-deps", "-r", str(PACKAGES)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        reason = f"{PACKAGES.name} cannot be installed: {str(error.stderr or error)[-1000:]}"
        if os.environ.get(REQUIRED):
            pytest.fail(reason)
        pytest.skip(f"{reason}; {REQUIRED}=1 makes this a failure")
    return python


@pytest.mark.soak
@pytest.mark.timeout(INSTALL_S + RUN_S + 60)
def test_their_environments_are_stepped(python: Path, tmp_path: Path) -> None:
    """Games of gem's, one turn, several and tools of verifiers', sessions of an OpenEnv server; none is left out."""
    report = tmp_path / "report.xml"
    left = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = left | {"PYTHONPATH": str(Path(turngym.__file__).parents[1]), "HF_HUB_OFFLINE": "1"}
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command += [str(HERE / name) for name in MODULES]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=RUN_S)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    ran = {case.get("classname", "").rpartition(".")[2] for case in ElementTree.parse(report).iter("testcase")}
    assert ran == {name.removesuffix(".py") for name in MODULES}
    assert [case.get("message") for case in ElementTree.parse(report).iter("skipped")] == []
