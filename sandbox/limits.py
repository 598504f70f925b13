"""What a program in a sandbox may use."""

from dataclasses import dataclass

from ..errors import ConfigError


@dataclass(frozen=True)
class Limits:
    """What one program, or one session, may use.

    Raises:
        ConfigError: A limit is zero or negative.
    """

    wall_s: float = 10.0
    """Seconds until it is killed; of a session, the default for each cell."""
    cpu_s: float | None = None
    """CPU seconds of any one process; None leaves it to wall_s."""
    memory_bytes: int = 512 << 20
    """Of all its processes and files together, where the tier can count them; else of each process."""
    num_processes: int = 32
    """Processes and threads at a time."""
    num_open_files: int = 256
    """Open files of each process."""
    disk_bytes: int = 64 << 20
    """Bytes of all files together; they are held in memory."""
    num_inodes: int = 4096
    """Files, folders and links together."""
    output_bytes: int = 64 << 10
    """Kept of each output stream; the rest is read and thrown away."""
    flood_bytes: int = 64 << 20
    """A program that writes more than this is ended."""
    allow_network: bool = False
    """Leave it the machine's network."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "allow_network" and value is not None and not value > 0:
                raise ConfigError(f"the limit {name} must be more than 0, got {value!r}")
