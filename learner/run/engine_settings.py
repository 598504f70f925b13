"""From a run's options to what its engines are made with."""

from ...agents.frameworks.factory import AgentFactory
from ...agents.template_kwargs import parse_template_kwargs
from ...errors import ConfigError
from ...executors.engines.vllm import VllmConfig
from ...executors.engines.vllm_adapter import Adapter
from ...executors.episodes.limits import Limits
from ...executors.fleet.rollout_actor import RolloutConfig
from ...registry import nearest
from .inputs import Inputs, model_place
from .placement import Layout
from .settings import TrainSettings

ENGINE_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SHARED_GPU_MEMORY = 0.4  # of a GPU that engine and learner share
SCORING_SEQS = 32  # scored beside each other; each step of an engine takes SCORING_TOKENS of them in any case
SCORING_TOKENS = 2048  # each needs a row of float32 logits, which vLLM sets no memory aside for


def engine_dtype(settings: TrainSettings) -> str:
    """Return the torch dtype name that engines use, and that weights travel in."""
    name = settings.vllm.dtype or settings.ds.param_dtype
    if name not in ENGINE_DTYPES:
        raise ConfigError(f"--vllm.dtype: unknown {name!r}.{nearest(name, ENGINE_DTYPES)}")
    return ENGINE_DTYPES[name]


def drain_timeout_s(settings: TrainSettings) -> float:
    """Return how long running completions may take to finish: the youngest of them has all of its own deadline."""
    return settings.rollout.generate_timeout_s + settings.vllm.sync_timeout_s


def pause_timeout_s(settings: TrainSettings) -> float:
    """Return the deadline of a pause as the driver sees it: the engine's own errors must come before it."""
    # It drains, stops and makes ready for weights, or goes on where that failed; and a margin.
    return drain_timeout_s(settings) + 4 * settings.vllm.sync_timeout_s


def rollout_config(settings: TrainSettings, inputs: Inputs, layout: Layout) -> RolloutConfig:
    """Return what each rollout actor is made with."""
    rollout, vllm, data, lora = settings.rollout, settings.vllm, settings.data, settings.ds.lora
    engine = VllmConfig(
        model=inputs.model,
        dtype=engine_dtype(settings),
        max_context=data.max_len,
        max_num_seqs=vllm.max_num_seqs,
        tensor_parallel_size=vllm.tensor_parallel_size,
        gpu_memory_utilization=vllm.gpu_memory_utilization or SHARED_GPU_MEMORY,
        enforce_eager=vllm.enforce_eager,
        cudagraph_mode=vllm.cudagraph_mode,
        enable_prefix_caching=vllm.enable_prefix_caching,
        kv_cache_gib=vllm.kv_cache_gib,
        seed=settings.train.seed,
        num_threads=layout.engine_threads,
        sync_timeout_s=vllm.sync_timeout_s,
        drain_timeout_s=drain_timeout_s(settings),
        hang_timeout_s=vllm.hang_timeout_s,
        adapter=Adapter(lora.rank, lora.alpha) if lora.rank and lora.sync == "adapter" else None,
        max_images=data.max_images_per_prompt or None,
    )
    limits = Limits(
        max_turns=rollout.max_turns,
        max_turn_tokens=rollout.max_new_tokens,
        max_episode_tokens=rollout.max_episode_tokens,
        max_context=data.max_len,
        max_seconds=rollout.max_seconds,
        env_timeout_s=_env_timeout_s(settings, inputs),
        generate_timeout_s=rollout.generate_timeout_s,
    )
    return RolloutConfig(
        engine=engine,
        env=inputs.env,
        limits=limits,
        env_pool=settings.env_pool,
        max_retries=rollout.max_retries,
        determinism_seed=settings.train.seed if settings.train.full_determinism_enable else None,
        in_lockstep=not settings.train.async_enable,
        template_kwargs=parse_template_kwargs(rollout.chat_template_kwargs),
        tool_parser=rollout.tool_parser,
        reasoning_parser=rollout.reasoning_parser,
    )


def _env_timeout_s(settings: TrainSettings, inputs: Inputs) -> float:
    """Return the deadline of one step, in which Prompt also waits for its reward function."""
    if isinstance(inputs.env, AgentFactory) or inputs.env.kwargs.get("remote_url") is None:
        return settings.env_pool.timeout_s
    return max(settings.env_pool.timeout_s, float(inputs.env.kwargs.get("timeout_s", settings.reward.timeout_s)))


def teacher_config(settings: TrainSettings, layout: Layout) -> VllmConfig:
    """Return what each engine of the teacher is made with, checked against the actor's model before."""
    model = settings.teacher.model_name_or_path
    if model is None:
        raise ConfigError("--algo.advantage.estimator on_policy_distill wants --teacher.model_name_or_path")
    return VllmConfig(
        model=model_place(model),
        dtype=engine_dtype(settings),
        max_context=settings.data.max_len + 1,  # a scored sequence is a prompt, and something must follow a prompt
        max_num_seqs=SCORING_SEQS,
        gpu_memory_utilization=settings.teacher.gpu_memory_utilization,
        enforce_eager=True,  # graphs are for decoding
        enable_prefix_caching=False,  # what is cached has no logits
        kv_cache_gib=settings.vllm.kv_cache_gib,
        seed=settings.train.seed,
        num_threads=layout.engine_threads,
        sync_timeout_s=settings.vllm.sync_timeout_s,
        hang_timeout_s=settings.vllm.hang_timeout_s,
        max_batched_tokens=SCORING_TOKENS,
        scoring_temperature=settings.rollout.temperature or 1.0,  # greedy logprobs count as temperature 1
    )
