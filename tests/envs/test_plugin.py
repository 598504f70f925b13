"""Importing turngym is light, and its environments reach Gymnasium whichever is imported first."""

import subprocess
import sys

import pytest


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "import gymnasium, turngym",
        "import turngym, gymnasium",
        "import turngym; turngym.Env; import gymnasium",
        "from turngym.envs.registration import register; import gymnasium",
        "import turngym; from gymnasium.envs.registration import registry; import gymnasium",
    ],
)
def test_any_order_of_imports_makes_a_builtin(imports: str) -> None:
    assert "whole number" in run(f"{imports}\nprint(gymnasium.make('turngym/Guess-v0').reset(seed=1)[0])")


@pytest.mark.slow
def test_gymnasium_keeps_its_own_loader_after_the_hook() -> None:
    code = (
        "import sys, turngym; before = list(sys.meta_path); import gymnasium\n"
        "print(type(gymnasium.__spec__.loader).__name__, len(before) - len(sys.meta_path))"
    )
    assert run(code).split() == ["SourceFileLoader", "1"]


def test_import_turngym_loads_nothing_heavy() -> None:
    code = (
        "import sys, turngym, turngym.envs, turngym.envs.commands\n"
        "print([m for m in ('numpy', 'gymnasium', 'torch', 'datasets', 'httpx', 'reasoning_gym') if m in sys.modules])"
    )
    assert run(code).strip() == "[]"


def test_public_names_are_there() -> None:
    import turngym
    import turngym.envs

    for module in (turngym, turngym.envs):
        for name in module.__all__:
            assert getattr(module, name) is not None
        assert set(module.__all__) <= set(dir(module))
        with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
            _ = module.Nothing
