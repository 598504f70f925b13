"""Low-rank adapters in vLLM: what an engine is started with for them, and how a request names one."""

from dataclasses import dataclass
from typing import Any

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vLLM has places for no others


@dataclass(frozen=True)
class Adapter:
    """A low-rank adapter on the weights that the engine was started with; each update brings another."""

    rank: int
    alpha: int

    def engine_arguments(self) -> dict[str, Any]:
        """Return what vLLM is started with: room for one adapter."""
        place = next((rank for rank in RANKS if rank >= self.rank), self.rank)
        return {"enable_lora": True, "max_loras": 1, "max_lora_rank": place}


def adapter_request(version: int) -> Any:
    """Return the name of a version's adapter; cached keys and values are found by it, so no two versions share any."""
    from vllm.lora.request import LoRARequest

    # The worker has loaded it already: the path is never opened, and there is none to be found if it were.
    return LoRARequest(f"version-{version}", version, "/loaded-from-memory") if version else None
