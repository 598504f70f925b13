"""Options of rollouts, evaluation and engines."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RolloutOptions:
    """How episodes are run."""

    batch_size: int = 128
    """Tasks per step."""
    n_samples_per_prompt: int = 8
    """Attempts at each task."""
    max_new_tokens: int | None = None
    """Most tokens sampled in one turn; by default what is left of data.max_len."""
    max_turns: int = 32
    """Most turns in one episode."""
    max_episode_tokens: int | None = None
    """Most tokens sampled in one episode, over all turns."""
    max_seconds: float = 1800.0
    """Deadline of one episode."""
    generate_timeout_s: float = 600.0
    """Deadline of one completion."""
    temperature: float = 1.0
    """Sampling temperature; the learner divides its logits by the same."""
    top_p: float = 1.0
    """Nucleus sampling; below 1 the learner cannot mirror the distribution yet and refuses."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn."""
    chat_template_kwargs: str | None = None
    """What the chat template takes beside messages, for all prompts of a run: a JSON object, such as
    '{"enable_thinking": false}'."""
    tool_parser: str | None = None
    """How tool calls are read: json, or a name of vLLM's; by default as the chat template suggests."""
    reasoning_parser: str | None = None
    """How thoughts are told from answers: tags, or a name of vLLM's; by default as the chat template suggests."""
    branch_at: tuple[int, ...] = ()
    """Turns, counted from 0, after which an episode forks into several that share what came before and go on by
    themselves, where the environment can fork. The attempts at a task are then the leaves."""
    branch_factor: int = 2
    """Into how many an episode forks at each of these turns."""
    max_retries: int = 2
    """How often a failed attempt is begun again before it counts as failed."""
    max_failed_attempts: float = 0.5
    """A task of which a larger share of attempts fails is dropped, and another one drawn for it."""
    vllm_generate_batch_size: int | None = None
    """Tasks in flight for one step; more than batch_size makes up for those that dynamic filtering leaves out."""
    straggler_timeout_s: float | None = None
    """How long a step waits after the last task that came; those that are late and would be too old for the next
    step are then given up and begun anew. By default as long as they take."""


@dataclass(frozen=True)
class EvalOptions:
    """Held-out tasks, scored before, during and after training."""

    steps: int = -1
    """Evaluate every so many steps; -1: only as at_start and at_end say."""
    at_start: bool = False
    """Evaluate before the first step."""
    at_end: bool = False
    """Evaluate after the last step."""
    dataset: str | None = None
    """Dataset as in data.prompt_dataset; by default the environment's own evaluation tasks."""
    split: str = "train"
    """Split of eval.dataset."""
    max_samples: int = 256
    """Most tasks to evaluate on."""
    temperature: float = 0.6
    """0 is greedy."""
    n_samples_per_prompt: int = 4
    """Attempts at each task."""
    pass_at: tuple[int, ...] = ()
    """Each k of pass@k, at most n_samples_per_prompt; by default 1 and n_samples_per_prompt."""


@dataclass(frozen=True)
class VllmOptions:
    """The engines."""

    num_engines: int | None = None
    """Engines, each in its own Ray actor; by default one per GPU that is left for them, else one."""
    tensor_parallel_size: int = 1
    """GPUs per engine."""
    gpu_memory_utilization: float | None = None
    """The engine's share of the GPU's memory; by default 0.4, since the learner is on the same GPU."""
    enforce_eager: bool = False
    """Run without CUDA graphs."""
    cudagraph_mode: Literal["full_decode_only", "full_and_piecewise"] = "full_decode_only"
    """full_and_piecewise compiles the model, so that steps that read prompts are fast too; it starts minutes later."""
    enable_prefix_caching: bool = True
    """Reuse the keys and values of shared prefixes; those of older weights are never used."""
    max_num_seqs: int = 256
    """Most requests decoded at once."""
    dtype: str | None = None
    """Weights' dtype; by default the learner's ds.param_dtype."""
    kv_cache_gib: float = 0.5
    """Memory for keys and values on an engine without GPU."""
    sync_timeout_s: float = 300.0
    """Deadline of each part of a weight update."""
    start_timeout_s: float = 600.0
    """Deadline of an engine's start."""
    hang_timeout_s: float = 120.0
    """An engine that gives no token for so long while requests run counts as dead."""
    max_restarts: int = 3
    """How often dead engines are restarted before the run stops."""
