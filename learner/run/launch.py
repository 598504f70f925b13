"""The processes of a run: learner ranks by role, the teacher's engines, and their start beside the engines."""

import os
from contextlib import ExitStack

from ...errors import ConfigError
from ...executors.fleet.fleet import Fleet
from ...executors.fleet.ray_calls import call_all
from ..advantages import NEEDS_TEACHER
from ..ranks.role_plan import GroupPlan
from ..ranks.roles import Roles
from ..teacher import Teacher
from .engine_settings import SHARED_GPU_MEMORY, teacher_config
from .from_settings import micro_batching, rank_config
from .placement import Cluster, Layout
from .plan import Plan
from .progress import Progress
from .settings import TrainSettings


def check_one_gpu(settings: TrainSettings, role_groups: list[GroupPlan]) -> None:
    """Refuse what one GPU, shared by all models, cannot hold or calculate.

    Raises:
        ConfigError: It names the options.
    """
    if len(role_groups) > 1:
        names = ", ".join(role for group in role_groups[1:] for role in group.roles)
        raise ConfigError(
            f"ranks of their own are asked for ({names}: --ref, --critic or --reward.num_gpus_per_node), and there is "
            "one GPU, which all models share: leave these options out, or give --train.colocate_all"
        )
    lora, dtype = settings.ds.lora, settings.ds.param_dtype
    if lora.rank and lora.sync == "adapter" and dtype == "fp32":
        raise ConfigError(
            "--ds.lora.sync adapter has no fp32 on a GPU, where vLLM's kernels for adapters take bf16 and fp16 only: "
            "give --ds.param_dtype bf16, or --ds.lora.sync merged"
        )
    if settings.algo.advantage.estimator in NEEDS_TEACHER:
        check_shares(settings)


def make_roles(plan: Plan, layout: Layout, cluster: Cluster) -> Roles:
    """Make the groups of learner ranks."""
    settings, groups = plan.settings, []
    for group in plan.role_groups:
        num_ranks = group.num_ranks or layout.num_ranks
        threads = layout.threads if "actor" in group.roles else max(1, (os.cpu_count() or 1) // num_ranks)
        config = rank_config(settings, plan.inputs, group.roles, threads)
        ranks = cluster.ranks(
            config,
            num_ranks,
            layout,
            batching=micro_batching(settings.train, plan.hidden_size),
            timeout_s=settings.ds.timeout_s,
        )
        groups.append((group.roles, ranks))
    return Roles(groups)


def make_teacher(plan: Plan, layout: Layout, cluster: Cluster, progress: Progress, stack: ExitStack) -> Teacher | None:
    """Make the teacher's engines, if something is learned from one; they end with the stack."""
    settings = plan.settings
    if settings.algo.advantage.estimator not in NEEDS_TEACHER:
        return None
    teacher = cluster.teacher(
        teacher_config(settings, layout),
        layout,
        num_engines=settings.teacher.num_engines,
        gpus_per_engine=0,  # it sees the GPU that the others share
        timeout_s=settings.rollout.generate_timeout_s,
        start_timeout_s=settings.vllm.start_timeout_s,
        max_restarts=settings.vllm.max_restarts,
        say=progress.say,
    )
    stack.callback(teacher.close)
    return teacher


def check_shares(settings: TrainSettings) -> None:
    """Refuse engines that together want more than the GPU that they share.

    Raises:
        ConfigError: It names both shares.
    """
    engine, teacher = settings.vllm.gpu_memory_utilization or SHARED_GPU_MEMORY, settings.teacher
    total = engine + teacher.num_engines * teacher.gpu_memory_utilization
    if total >= 1:
        raise ConfigError(
            f"--vllm.gpu_memory_utilization {engine} and --teacher.gpu_memory_utilization "
            f"{teacher.gpu_memory_utilization} of {teacher.num_engines} engines (--teacher.num_engines) are "
            f"{total:.2f} of the one GPU, on which the learner lives too; they must leave it some"
        )


def load_all(fleet: Fleet, teacher: Teacher | None, roles: Roles, layout: Layout, settings: TrainSettings) -> int:
    """Start engines and learner, beside each other where they share no GPU; return the number of parameters."""
    timeout_s = settings.vllm.start_timeout_s
    starting = fleet.begin_start()
    if layout.is_on_gpu:  # an engine measures the GPU's free memory, so nothing else may take any meanwhile
        call_all(starting, timeout_s, "starting the engines")
    if teacher is not None:
        teaching = teacher.begin_start()
        if layout.is_on_gpu:
            call_all(teaching, timeout_s, "starting the teacher's engines")
        starting += teaching
    loading = [call for ranks in roles for call in ranks.begin_setup()]
    call_all([*starting, *loading], timeout_s, "starting engines and learner")
    return int(call_all(loading, timeout_s, "loading the learner")[0])
