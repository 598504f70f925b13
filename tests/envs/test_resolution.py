"""Every form that `--agent env:SPEC` takes, here and in another process."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from turngym.envs.base import AsyncEnv
from turngym.envs.builtin.guess import Guess
from turngym.envs.factory import EnvFactory
from turngym.envs.resolution import resolve
from turngym.errors import ConfigError, UnknownNameError

SOURCE = """
from turngym import AsyncEnv, Env
import words_beside_it


class Mine(Env):
    def __init__(self, times: int = 1):
        self.times = times

    def reset(self, *, seed=None, options=None):
        self._draw(seed, options)
        return words_beside_it.WORD * self.times, {}

    def step(self, action):
        return "", 1.0, True, False, {}


class Other(AsyncEnv):
    pass


class NoEnvironment:
    pass


number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_envs.py").write_text(SOURCE)
    (tmp_path / "words_beside_it.py").write_text("WORD = 'ho'\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [n for n in sys.modules if n in ("my_envs", "words_beside_it") or n.startswith("turngym_file_")]:
        del sys.modules[name]


@pytest.mark.parametrize("spec", ["Guess", "turngym/Guess", "turngym/Guess-v0", "Guess-v0"])
def test_a_registered_id(spec: str) -> None:
    factory = resolve(spec, {"high": 3})
    env = factory()
    assert isinstance(env, Guess)
    assert "from 1 to 3" in env.reset(seed=0)[0]


def test_a_module_on_the_path() -> None:
    assert resolve("turngym.envs.builtin.guess:Guess", {}).env_class is Guess


@pytest.mark.parametrize("spec", ["my_envs:Mine", "my_envs.py:Mine", "./my_envs.py:Mine", "{folder}/my_envs.py:Mine"])
def test_a_module_or_file_of_the_users(folder: Path, spec: str) -> None:
    factory = resolve(spec.format(folder=folder), {"times": 2})
    assert factory().reset(seed=0) == ("hoho", {})
    assert factory.tasks("train", 1)[0].seed != factory.tasks("eval", 1)[0].seed


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["my_envs:Mine", "my_envs.py:Mine"])
def test_a_factory_works_in_another_process_and_folder(folder: Path, tmp_path: Path, spec: str) -> None:
    (tmp_path / "factory.pickle").write_bytes(pickle.dumps(resolve(spec, {"times": 3})))
    code = f"import pickle; print(pickle.load(open({str(tmp_path / 'factory.pickle')!r}, 'rb'))().reset(seed=0)[0])"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "hohoho"


def test_one_file_is_imported_once(folder: Path) -> None:
    assert resolve("my_envs.py:Mine", {}).env_class is resolve("./my_envs.py:Mine", {}).env_class
    assert issubclass(resolve("my_envs.py:Other", {}).env_class, AsyncEnv)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("my_envs.py", "names a file but no class; write 'my_envs.py:MyEnv'"),
        ("missing.py:Mine", "no file '.*missing.py'"),
        ("my_envs.py:Min", "has no 'Min'. Did you mean 'Mine'"),
        ("my_envs:Min", "has no 'Min'. Did you mean 'Mine'"),
        ("no_such_module:Mine", "no module named 'no_such_module'"),
        ("my_envs:NoEnvironment", "NoEnvironment, not an environment; wanted a class that inherits"),
        ("my_envs:number", "int, not an environment"),
        (":Mine", "wanted 'module:attribute'"),
    ],
)
def test_what_is_not_there_or_no_environment(folder: Path, spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(spec, {})


def test_a_file_that_does_not_import_is_named_and_may_be_mended(folder: Path) -> None:
    (folder / "broken.py").write_text("import turngym\n1 / 0\n")
    with pytest.raises(ConfigError, match=r"broken.py' cannot be imported: ZeroDivisionError"):
        resolve("broken.py:Mine", {})
    (folder / "broken.py").write_text(SOURCE)
    assert resolve("broken.py:Mine", {})().times == 1


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"hi": 3},
            "environment 'Guess' takes no argument 'hi'. Did you mean 'high'.* low, high, max_guesses, par",
        ),
        ({"zzz": 3}, r"takes no argument 'zzz'\. It takes: low"),
        ({"low": "x"}, r"low wants int, got 'x' \(str\)"),
        ({"low": True}, "low wants int, got True"),
        ({"low": 1.5}, r"low wants int, got 1.5"),
    ],
)
def test_keyword_arguments_are_checked(kwargs, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("Guess", kwargs)


def test_a_missing_argument_is_named(tmp_path: Path) -> None:
    (tmp_path / "picky.py").write_text(
        "from turngym import Env\n\nclass Picky(Env):\n    def __init__(self, size): ...\n"
    )
    with pytest.raises(ConfigError, match=r"needs size; give it as --agent_args.size VALUE"):
        resolve(f"{tmp_path}/picky.py:Picky", {})


def test_an_unknown_member_of_a_collection_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'chain_sum'"):
        resolve("reasoning_gym/chain_sums", {})
    with pytest.raises(ConfigError, match="dataset is already given by its name"):
        resolve("reasoning_gym/chain_sum", {"dataset": "gcd"})


def test_factories_compare_by_value() -> None:
    assert resolve("Guess", {"low": 2}) == pickle.loads(pickle.dumps(resolve("Guess", {"low": 2})))
    assert EnvFactory("Guess", Guess).env_class is Guess
