"""Imports of OpenRLHF: answered for a user's file and for nothing else, and never in place of an installed one."""

import importlib
import importlib.util
import pickle
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from turngym.envs.openrlhf.stand_in import load_file, standing_in
from turngym.envs.rewards import load_reward
from turngym.errors import ConfigError

pytestmark = pytest.mark.usefixtures("without_openrlhf")


def nothing_is_left() -> bool:
    spec = PathFinder.find_spec("openrlhf")  # a folder of that name may lie on the path
    is_found = importlib.util.find_spec("openrlhf") is not None and spec is None
    return not is_found and not any(name.partition(".")[0] == "openrlhf" for name in sys.modules)


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize(
    "line",
    [
        "from openrlhf.utils.agent import AgentInstanceBase as Base",
        "import openrlhf.utils.agent as agent; Base = agent.AgentInstanceBase",
        "import openrlhf.utils.agent; Base = openrlhf.utils.agent.AgentInstanceBase",
        "from openrlhf.utils import agent; Base = agent.AgentInstanceBase",
        "from importlib import import_module; Base = import_module('openrlhf.utils.agent').AgentInstanceBase",
    ],
)
def test_ways_to_import_it(tmp_path: Path, line: str) -> None:
    module = load_file(write(tmp_path, "agent_func.py", line))
    from turngym.envs.openrlhf.agent import AgentInstanceBase

    assert module.Base is AgentInstanceBase
    assert nothing_is_left()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("openrlhf.utils.agent")


def test_modules_beside_the_file_are_served_too(tmp_path: Path) -> None:
    write(tmp_path, "beside_agent_func.py", "from openrlhf.utils.agent import AgentExecutorBase")
    module = load_file(write(tmp_path, "agent_func.py", "from beside_agent_func import AgentExecutorBase as Base"))
    assert module.Base.__name__ == "AgentExecutorBase"
    assert nothing_is_left()


def test_a_function_of_the_file_may_import_later(tmp_path: Path) -> None:
    text = "def late():\n    from openrlhf.utils.agent import AgentInstanceBase\n    return AgentInstanceBase\n"
    module = load_file(write(tmp_path, "agent_func.py", text))
    from turngym.envs.openrlhf.agent import AgentInstanceBase

    assert module.late() is AgentInstanceBase
    assert nothing_is_left()


def test_a_file_that_fails_leaves_nothing_either(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be imported: ZeroDivisionError"):
        load_file(write(tmp_path, "agent_func.py", "import openrlhf.utils.agent\n1 / 0"))
    assert nothing_is_left()


def test_what_is_not_stood_in_for_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"No module named 'openrlhf\.models'.* only for openrlhf\.utils, openrlhf\.u"
    ):
        load_file(write(tmp_path, "agent_func.py", "import openrlhf.models"))
    with pytest.raises(ConfigError, match="cannot import name 'get_strategy'"):
        load_file(write(tmp_path, "agent_func_2.py", "from openrlhf.utils import get_strategy"))


def test_an_installed_openrlhf_is_found_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    for name in ("openrlhf/__init__.py", "openrlhf/utils/__init__.py"):
        write(site, name, "")
    write(site, "openrlhf/utils/agent.py", "class AgentInstanceBase:\n    is_installed = True\n")
    monkeypatch.syspath_prepend(str(site))
    try:
        text = "from openrlhf.utils.agent import AgentInstanceBase as Base"
        assert load_file(write(tmp_path, "agent_func.py", text)).Base.is_installed
        assert sys.modules["openrlhf.utils.agent"].AgentInstanceBase.is_installed
        # What that version lacks is not added to it.
        with pytest.raises(ConfigError, match=r"No module named 'openrlhf\.utils\.logging_utils'$"):
            load_file(write(tmp_path, "other.py", "import openrlhf.utils.logging_utils"))
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "openrlhf"]:
            del sys.modules[name]


def test_a_folder_of_that_name_is_no_openrlhf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "openrlhf" / "runs").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "from openrlhf.utils.agent import AgentInstanceBase"
    assert load_file(write(tmp_path, "agent_func.py", text)).AgentInstanceBase
    assert nothing_is_left()


def test_nested_loads_end_with_the_last(tmp_path: Path) -> None:
    with standing_in():
        load_file(write(tmp_path, "agent_func.py", "import openrlhf.utils.agent"))
        assert importlib.import_module("openrlhf.utils.agent")
    assert nothing_is_left()


@pytest.mark.slow
def test_what_the_file_takes_from_there_crosses_processes(files: Path, tmp_path: Path) -> None:
    """A pickle of a factory, opened where nothing was loaded before; it makes the agent's environment."""
    from turngym.envs.openrlhf.env import agent_file

    (tmp_path / "factory.pickle").write_bytes(pickle.dumps(agent_file(str(files / "async_init.py"), {})))
    code = (
        "import pickle, sys; factory = pickle.load(open(sys.argv[1], 'rb')); print(type(factory()).__name__); "
        "print(any(name.partition('.')[0] == 'openrlhf' for name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "factory.pickle")], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["AgentFile", "False"], done.stderr


@pytest.mark.slow
async def test_reward_files_grade_boxed_answers(files: Path) -> None:
    reward = load_reward(str(files / "math_reward_func.py"))
    queries = [r"1+1= so \boxed{2.0}", r"1+1= \boxed{3}", "1+1= 2"]
    found = await reward(queries, ["1+1="] * 3, ["2"] * 3)
    assert [one.reward for one in found] == [1.0, 0.0, 0.0]
    assert found[0].extra_logs["math_accuracy"] == pytest.approx(1 / 3)
