"""Low-rank adapters in vLLM: what an engine is started with for them, and how a request names one."""

from dataclasses import dataclass
from typing import Any

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vLLM has places for no others
ADAPTER_ID = 1  # always: requests that run over an update hold it, and the weights behind it are replaced


@dataclass(frozen=True)
class Adapter:
    """A low-rank adapter on the weights that the engine was started with; each update brings another."""

    rank: int
    alpha: int

    def engine_arguments(self) -> dict[str, Any]:
        """Return what vLLM is started with: room for one adapter."""
        place = next((rank for rank in RANKS if rank >= self.rank), self.rank)
        return {"enable_lora": True, "max_loras": 1, "max_lora_rank": place}


def adapter_request(folder: str | None = None) -> Any:
    """Return the adapter's name as requests have it; with a folder, the order to load its weights from there."""
    from vllm.lora.request import LoRARequest

    if folder is not None:
        return LoRARequest("policy", ADAPTER_ID, folder, load_inplace=True)
    # The worker has loaded it already: the path is never opened, and there is none to be found if it were.
    return LoRARequest("policy", ADAPTER_ID, "/loaded-from-memory")
