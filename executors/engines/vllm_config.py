"""What a vLLM engine is started with: our settings, vLLM's arguments, and the environment it reads."""

import os
from dataclasses import dataclass
from typing import Any, Literal

from ...agents.images import is_vision_model
from .vllm_adapter import Adapter

# Set before vLLM is imported. On two cores the worker inside EngineCore is twice as fast as beside it,
# and tracing costs the first request up to 16 s.
CPU_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
}
ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "TOKENIZERS_PARALLELISM": "false",
    # GPUs would have the second one from some version on, which nothing here has been tried with.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
CAPTURE_SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 192, 256]
CudagraphMode = Literal["full_decode_only", "full_and_piecewise"]


@dataclass(frozen=True)
class VllmConfig:
    """What an engine is started with."""

    model: str
    dtype: str  # "bfloat16", "float16", "float32"
    max_context: int
    max_num_seqs: int = 256
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    cudagraph_mode: CudagraphMode = "full_decode_only"
    enable_prefix_caching: bool = True
    kv_cache_gib: float = 0.5
    seed: int = 0
    num_threads: int = 1  # on CPU
    sync_timeout_s: float = 300.0
    drain_timeout_s: float = 900.0  # so long may running requests take to finish before an update
    hang_timeout_s: float = 120.0  # so long without a token while requests run, and the engine counts as dead
    adapter: Adapter | None = None  # None: updates bring all weights
    max_batched_tokens: int | None = None  # computed at once; by default as vLLM chooses
    max_images: int | None = None  # of one prompt; by default as many as vLLM lets in
    scoring_temperature: float = 1.0  # any other makes an engine that only scores


def set_environment(config: VllmConfig, *, on_gpu: bool) -> None:
    """Set what vLLM reads when it is imported."""
    os.environ.update(ENVIRONMENT)
    if not on_gpu:
        os.environ.update(CPU_ENVIRONMENT, OMP_NUM_THREADS=str(config.num_threads))


def engine_arguments(config: VllmConfig, *, on_gpu: bool) -> dict[str, Any]:
    """Return vLLM's arguments. Any: they have many types."""
    arguments: dict[str, Any] = {
        "model": config.model,
        "dtype": config.dtype,
        "max_model_len": config.max_context,
        "max_num_seqs": config.max_num_seqs,
        "tensor_parallel_size": config.tensor_parallel_size,
        "enable_prefix_caching": config.enable_prefix_caching,
        "seed": config.seed,
        "scheduling_policy": "priority",  # of `Sampling.priority`, then by when a request came
        "generation_config": "vllm",  # nothing but what each request asks for
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": f"{__package__}.vllm_worker.WeightReceiver",
        "disable_log_stats": True,
    }
    if config.adapter is not None:
        arguments |= config.adapter.engine_arguments()
    if config.max_batched_tokens is not None:
        arguments["max_num_batched_tokens"] = config.max_batched_tokens
    if not on_gpu:
        return arguments | {"enforce_eager": True, "kv_cache_memory_bytes": int(config.kv_cache_gib * 2**30)}
    arguments["gpu_memory_utilization"] = config.gpu_memory_utilization
    if config.enforce_eager:
        return arguments | {"enforce_eager": True}
    return arguments | {"compilation_config": _graphs(config)}


def vision_arguments(config: VllmConfig) -> dict[str, Any]:
    """Return what vLLM is started with beside that for a model with eyes: no memory is measured out for videos."""
    if not is_vision_model(config.model):
        return {}
    limits = {"video": 0} if config.max_images is None else {"video": 0, "image": config.max_images}
    return {"limit_mm_per_prompt": limits}


def _graphs(config: VllmConfig) -> dict[str, Any]:
    """Choose graphs; mode FULL without compilation died of illegal memory accesses (vLLM 0.22, one H200)."""
    mode = config.cudagraph_mode.upper()
    if config.cudagraph_mode == "full_and_piecewise":
        return {"mode": 3, "cudagraph_mode": mode}
    sizes = [size for size in CAPTURE_SIZES if size <= config.max_num_seqs]
    return {"mode": 0, "cudagraph_mode": mode, "cudagraph_capture_sizes": sizes}
