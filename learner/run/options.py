"""Options of what a run keeps on disk; torch-free, so that a mistake shows at once."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CkptOptions:
    """What is kept on disk."""

    output_dir: str = "./ckpt"
    """Run folder: config, metrics, trajectories, pictures and the final model."""
    path: str | None = None
    """Folder of the checkpoints; by default output_dir/checkpoints."""
    save_steps: int = -1
    """Save every so many steps; an interrupted run always saves."""
    max_num: int = 3
    """Keep so many checkpoints."""
    load_enable: bool = False
    """Go on from the newest checkpoint, if there is one."""
    save_hf: bool = True
    """Write the final model as a Hugging Face folder."""


@dataclass(frozen=True)
class LoggerOptions:
    """What is logged."""

    trajectories_per_step: int = 8
    """Trajectories written to disk at each step; -1 writes all."""
