"""Options of tasks, rewards and environments."""

from dataclasses import dataclass


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
    """Deadline of one call."""
    clip_range: tuple[float, float] = (-10.0, 10.0)
    """Rewards are clipped to this range before the baseline."""


@dataclass(frozen=True)
class EnvPoolOptions:
    """Threads for synchronous environments."""

    num_threads: int = 32
    """Most synchronous environments that step at once in one rollout actor."""
    timeout_s: float = 60.0
    """Deadline of one reset or step."""
