"""Where the processes of a run live: Ray, its resources, and nothing left behind at the end."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...executors.engines.transports import sweep_leftovers
from ...executors.engines.vllm import VllmConfig
from ...executors.fleet.fleet import Fleet
from ...executors.fleet.rollout_actor import RolloutActor, RolloutConfig
from ...executors.fleet.scoring_actor import ScoringActor
from ...executors.pools.known_states import KnownStates
from ..ranks.group import CONTROL_GROUP, Ranks
from ..ranks.packing import MicroBatching
from ..ranks.rank import LearnerRank, RankConfig
from ..teacher import Teacher
from .guardian import Guardian

OBJECT_STORE_BYTES = 512 << 20
END_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Hardware:
    """What the run may use."""

    num_gpus: int
    num_cpus: int


@dataclass(frozen=True)
class Layout:
    """How many processes of each kind, and what each may use."""

    num_ranks: int
    num_engines: int
    gpus_per_rank: float
    gpus_per_engine: float
    threads: int  # for each rank that computes on CPU
    engine_threads: int  # for each engine that does

    @property
    def is_on_gpu(self) -> bool:
        """Whether there is a GPU at all."""
        return self.gpus_per_rank > 0


class Cluster:
    """Ray for one run: the cluster that `RAY_ADDRESS` names, or a private one on this machine."""

    def __init__(self, logs: Path) -> None:
        import ray

        self._before = _descendants()
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        self._is_private = "RAY_ADDRESS" not in os.environ
        if self._is_private:
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")
            os.environ.setdefault("RAY_worker_niceness", "0")  # actors are the run here, not guests
        self._guardian: Guardian | None = None
        local: dict[str, Any] = {}
        if self._is_private:
            self._guardian = Guardian()
            local = {
                # Engines and ranks take turns, so more of them than cores may share a small machine.
                "num_cpus": max(os.cpu_count() or 1, 64),
                "object_store_memory": OBJECT_STORE_BYTES,
                "include_dashboard": False,
            }
        ray.init(log_to_driver=False, configure_logging=False, **local)
        if self._is_private:
            _link_logs(logs)

    def hardware(self) -> Hardware:
        """Count what the cluster has."""
        import ray

        resources = ray.cluster_resources()
        return Hardware(int(resources.get("GPU", 0)), int(resources.get("CPU", 1)))

    def fleet(
        self,
        config: RolloutConfig,
        layout: Layout,
        *,
        start_timeout_s: float,
        max_restarts: int,
        say: Callable[[str], None],
        env_states: KnownStates | None = None,
    ) -> Fleet:
        """Make the rollout actors; one that takes another's place goes on from what that one's environments kept."""
        import ray

        known = env_states or KnownStates(say)
        remote: Any = ray.remote(RolloutActor)
        options = {"num_cpus": 1, "num_gpus": layout.gpus_per_engine, "max_concurrency": 10_000}

        def make_actor(index: int) -> Any:
            return remote.options(**options, runtime_env=_runtime_env(layout.engine_threads)).remote(
                replace(config, env_states=known.for_new_actor(index)),
                on_gpu=layout.is_on_gpu,
                name=f"engine {index}",
            )

        return Fleet(
            make_actor, layout.num_engines, start_timeout_s=start_timeout_s, max_restarts=max_restarts, say=say
        )

    def teacher(
        self,
        config: VllmConfig,
        layout: Layout,
        *,
        num_engines: int,
        gpus_per_engine: float,
        timeout_s: float,
        start_timeout_s: float,
        max_restarts: int,
        say: Callable[[str], None],
    ) -> Teacher:
        """Make the teacher's scoring actors."""
        import ray

        remote: Any = ray.remote(ScoringActor)
        options = {"num_cpus": 1, "num_gpus": gpus_per_engine, "max_concurrency": 1000}

        def make_actor(index: int) -> Any:
            return remote.options(**options, runtime_env=_runtime_env(layout.engine_threads)).remote(
                config, on_gpu=layout.is_on_gpu, name=f"teacher engine {index}"
            )

        return Teacher(
            make_actor,
            num_engines,
            temperature=config.scoring_temperature,
            start_timeout_s=start_timeout_s,
            timeout_s=timeout_s,
            max_restarts=max_restarts,
            say=say,
        )

    def ranks(
        self, config: RankConfig, world_size: int, layout: Layout, *, batching: MicroBatching, timeout_s: float
    ) -> Ranks:
        """Make a group of the learner's ranks."""
        import ray

        # One thread computes, another takes `request_stop` meanwhile.
        decorate: Any = ray.remote  # its types know no concurrency groups
        remote = decorate(concurrency_groups={CONTROL_GROUP: 1})(LearnerRank)
        options = {"num_cpus": 1, "num_gpus": layout.gpus_per_rank}

        def make_actor(index: int) -> Any:
            return remote.options(**options, runtime_env=_runtime_env(config.num_threads)).remote(
                config, index, world_size, on_gpu=layout.is_on_gpu
            )

        return Ranks(make_actor, world_size, batching=batching, timeout_s=timeout_s)

    def close(self) -> None:
        """End Ray, and every process that this run began and that still lives."""
        import psutil
        import ray

        ours = [process for process in _descendants() if process not in self._before]
        ray.shutdown()
        _, alive = psutil.wait_procs(ours, timeout=END_TIMEOUT_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=END_TIMEOUT_S)
        sweep_leftovers()  # of a rank that was killed
        if self._guardian is not None:
            self._guardian.dismiss()


def plan_layout(
    hardware: Hardware,
    *,
    num_gpus_per_node: int | None,
    num_nodes: int,
    num_engines: int | None,
    gpus_per_engine: int,
) -> Layout:
    """Share the hardware out between learner and engines.

    Raises:
        ConfigError: More is asked for than there is.
    """
    cores = max(1, os.cpu_count() or 1)
    if hardware.num_gpus == 0:
        ranks = (num_gpus_per_node or 1) * num_nodes
        engines = num_engines or 1
        return Layout(ranks, engines, 0, 0, max(1, cores // ranks), max(1, cores // engines))
    if hardware.num_gpus > 1:
        raise ConfigError(
            f"{hardware.num_gpus} GPUs were found, and weights cannot travel between GPUs yet; "
            "show the run one of them with CUDA_VISIBLE_DEVICES=0"
        )
    wanted = {
        "--actor.num_gpus_per_node x --actor.num_nodes": (num_gpus_per_node or 1) * num_nodes,
        "--vllm.num_engines": num_engines or 1,
        "--vllm.tensor_parallel_size": gpus_per_engine,
    }
    for option, count in wanted.items():
        if count > 1:
            raise ConfigError(f"{option} is {count}, and there is one GPU, which the learner and one engine share")
    return Layout(1, 1, 0.5, 0.5, threads=1, engine_threads=1)


def _runtime_env(threads: int) -> dict[str, Any]:
    # Ray would set OMP_NUM_THREADS to 1 for an actor of one CPU.
    return {"env_vars": {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}}


def _descendants() -> list[Any]:
    import psutil

    return psutil.Process().children(recursive=True)


def _link_logs(logs: Path) -> None:
    """Let the run folder show where Ray writes what its processes print."""
    import ray

    node: Any = ray._private.worker._global_node
    session = Path(node.get_session_dir_path()) / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    link = logs / "processes"
    link.unlink(missing_ok=True)
    link.symlink_to(session)
