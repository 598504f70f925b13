"""Options of tasks, rewards and environments."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class DataOptions:
    """Where tasks come from when the environment does not bring its own."""

    prompt_dataset: str | None = None
    """Dataset: a hub name, a folder, or json, jsonl, csv or parquet files, comma-separated."""
    prompt_probs: str | None = None
    """Comma-separated sampling weights, one per dataset; by default the datasets are joined."""
    prompt_split: str = "train"
    """Split to train on."""
    input_key: str = "input"
    """Column that holds the prompt: text or chat messages."""
    label_key: str | None = None
    """Column that holds the expected answer."""
    image_key: str | None = None
    """Column that holds the prompt's images: paths or bytes, one or several; for vision-language models."""
    max_images_per_prompt: int = 0
    """Most images of one prompt, later turns included; 0 for as many as the engine takes."""
    input_template: str | None = None
    """Text with one {} that the prompt is put into, such as "Question: {}"."""
    apply_chat_template: bool = False
    """Render prompts with the model's chat template; off, a prompt string is sent as it is."""
    max_samples: int = 100_000_000
    """Use at most this many tasks."""
    max_len: int = 2048
    """Most tokens of prompt, completions and observations together."""


@dataclass(frozen=True)
class RewardOptions:
    """Where rewards come from when the environment does not give them."""

    remote_url: str | None = None
    """A Python file with reward_func(queries, prompts, labels, **kwargs), or HTTP URLs, comma-separated."""
    timeout_s: float = 180.0
    """Deadline of one call of remote_url."""
    model_name_or_path: str | None = None
    """A reward model (a Hugging Face sequence classifier of one label) that scores whole episodes."""
    num_nodes: int = 1
    """Nodes for the reward model's own ranks."""
    num_gpus_per_node: int | None = None
    """Ranks of its own per node; by default it shares the actor's."""
    offload: bool = False
    """Keep the reward model in host memory between uses."""
    weights: tuple[float, ...] = ()
    """Weights of the sources that are given: environment or remote_url first, then the reward model; by default 1
    each, the environment's 0 where it has no reward of its own."""
    normalize_enable: bool = False
    """Subtract the mean and divide by the deviation that the reward model's configuration holds."""
    clip_range: tuple[float, float] = (-10.0, 10.0)
    """Rewards are clipped to this range before the baseline."""
    overlong_buffer_len: float | None = None
    """Tokens before the limit over which a penalty for length grows (DAPO, arXiv:2503.14476); None for none."""
    overlong_penalty_factor: float = 1.0
    """The penalty at the limit."""
    stop_properly_penalty_coef: float | None = None
    """What an attempt that was cut off keeps of a positive reward, 0 to 1; a negative value is its reward."""


@dataclass(frozen=True)
class EnvPoolOptions:
    """Where environments run, and how many at once."""

    backend: Literal["thread", "process"] = "thread"
    """Where synchronous environments run: threads if they wait, processes if they compute, hang or crash."""
    num_threads: int = 32
    """With threads: most synchronous environments that step at once in one rollout actor."""
    num_processes: int | None = None
    """With processes: most workers of one rollout actor, which share the environments; by default one per core."""
    max_memory_gib: float | None = None
    """With processes: memory that a worker may take; by default any."""
    timeout_s: float = 60.0
    """Deadline of one reset or step."""
    max_concurrency: int | None = None
    """Most calls of one kind of environment at once; by default the pool finds out how many it can bear."""
    weights: str | None = None
    """NAME=2,OTHER=1: by which several kinds of environments share workers and engines; 1 for those not named."""
    num_workers: int = 0
    """Ray actors per rollout actor that host its environments, on any node; 0: they live with the rollout actor."""
    num_cpus: float = 1.0
    """Cores that Ray sets aside for each of these."""
    resources: str | None = None
    """Other resources of Ray that each of these takes, as JSON: {"envnode": 1}."""
    start_timeout_s: float = 120.0
    """Deadline of their start."""
    max_restarts: int = 3
    """How often dead ones are restarted, over the whole run of one rollout actor."""
