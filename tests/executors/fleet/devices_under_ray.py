"""A program for `test_devices.py`: starts Ray with two GPUs that are not there, and prints who takes which."""

import itertools
import json
import os
import subprocess
import sys
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from turngym.executors.fleet.devices import VARIABLE, take_devices
from turngym.executors.fleet.ray_calls import from_ray

NUMBERS = itertools.count()
NOT_SET = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}


@ray.remote
class Engine:
    """Takes its devices at its start as the actors of a run do."""

    def __init__(self, name: str, count: int) -> None:
        take_devices(name, count=count)

    def look(self) -> list[str]:
        """Return what this process sees, and what its child does."""
        program = f"import os; print(os.environ[{VARIABLE!r}])"
        child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        return [os.environ[VARIABLE], child.stdout.strip()]


def looks(count: int, num_engines: int, **options: Any) -> list[list[str]]:
    """Start engines of so many GPUs, all at once, and end them again."""
    engines = [_engine(f"engine {i}", count, num_gpus=count, **options) for i in range(num_engines)]
    found: list[list[str]] = ray.get([engine.look.remote() for engine in engines], timeout=60)
    for engine in engines:
        ray.kill(engine)
    return found


def asks_for_none() -> str:
    """Put an engine into a bundle that has a GPU, without asking for it; return how it fails."""
    group = placement_group([{"GPU": 1, "CPU": 1}])
    ray.get(group.ready(), timeout=60)
    where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    engine = _engine("engine 0", 1, num_cpus=1, scheduling_strategy=where)
    try:
        ray.get(engine.look.remote(), timeout=60)
    except RayError as error:
        return str(from_ray(error, "starting the engines", "process 0"))
    return "it started"


def _engine(name: str, count: int, **options: Any) -> Any:
    """Start an engine that lives until it is killed, whoever refers to it: under load Ray was seen to lose count."""
    remote: Any = Engine
    return remote.options(lifetime="detached", name=f"{name} {next(NUMBERS)}", **options).remote(name, count)


def main() -> None:
    """Print one JSON object."""
    os.environ |= {
        "RAY_AUTH_MODE": "disabled",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    }  # none is asked for: none seen
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    ray.init(num_gpus=2, num_cpus=8, object_store_memory=100 << 20, **options)
    found = {
        "set by Ray": looks(1, 2),
        "not set by Ray": looks(1, 2, runtime_env=NOT_SET),
        "one of two": looks(2, 1),
        "none asked for": asks_for_none(),
    }
    ray.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
