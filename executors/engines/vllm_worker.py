"""The part of TurnGym that lives inside vLLM's worker: receives weights bucket by bucket.

vLLM mixes this class into its worker (`worker_extension_cls`) and calls it by name through
`collective_rpc`, which both ends of our vLLM range offer; their own update calls differ.
"""

# B requests, V tokens of the vocabulary

import ctypes
import json
import pickle
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...errors import WeightSyncError
from .transports import open_bucket
from .vllm_adapter import ADAPTER_ID, adapter_request
from .weights import Bucket, checksum, views

_PR_SET_PDEATHSIG = 1
# An engine must not outlive the actor that owns it, however that one dies.
ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class WeightReceiver:
    """Methods added to vLLM's worker."""

    # Set by vLLM's worker, which this is mixed into. Any: vLLM's types differ between its versions.
    model_runner: Any
    vllm_config: Any
    device: torch.device
    add_lora: Callable[[Any], bool]

    def turngym_begin_update(self) -> None:
        """Make ready: layers collect their weights and are converted once they are complete."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        with self._vllm_context(), torch.device(self.device):
            initialize_layerwise_reload(self.model_runner.get_model())
        self._loaded: set[str] = set()

    def turngym_load_bucket(self, pickled: bytes) -> int:
        """Load one bucket and return the checksum of its bytes as they lie here."""
        bucket: Bucket = pickle.loads(pickled)
        buffer = open_bucket(bucket)
        received = checksum(buffer)
        with self._vllm_context(), torch.device(self.device):
            loaded = self.model_runner.get_model().load_weights(views(buffer, bucket.tensors))
        self._loaded |= set(loaded or ())
        return received

    def turngym_finish_update(self) -> list[str]:
        """Convert what is left and return the parameters that no bucket held."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        model = self.model_runner.get_model()
        with self._vllm_context(), torch.device(self.device):
            finalize_layerwise_reload(model, self.vllm_config.model_config)
            _refresh_tied_heads(model)
        return sorted({name for name, _ in model.named_parameters()} - self._loaded)

    def turngym_start_adapter(self, rank: int) -> None:
        """Have an adapter of zeros for the requests that come before the first update; vLLM loads no empty one."""
        self.model_runner.lora_manager.add_dummy_lora(adapter_request(), rank)

    def turngym_begin_adapter(self) -> None:
        """Make ready for the tensors of another adapter; the base weights stay."""
        self._adapter: dict[str, torch.Tensor] = {}

    def turngym_load_adapter_bucket(self, pickled: bytes) -> int:
        """Keep one bucket of an adapter and return the checksum of its bytes as they lie here."""
        bucket: Bucket = pickle.loads(pickled)
        buffer = open_bucket(bucket)
        received = checksum(buffer)
        self._adapter |= {name: tensor.clone() for name, tensor in views(buffer, bucket.tensors)}
        return received

    def turngym_finish_adapter(self, rank: int, alpha: int) -> None:
        """Put the adapter that was collected in the place of the one before.

        It goes through a folder in memory, since that is the one way in that all of our vLLM range has.

        Raises:
            WeightSyncError: The engine would use it only in part: vLLM passes over names it does not know.
        """
        from safetensors.torch import save_file

        tensors, self._adapter = self._adapter, {}
        pairs = {name.replace(".lora_B.", ".lora_A.") for name in tensors}
        if not tensors or 2 * len(pairs) != len(tensors):
            raise WeightSyncError(f"{len(tensors)} tensors came for {len(pairs)} adapted layers; each needs A and B")
        settings = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": "all-linear"}
        with tempfile.TemporaryDirectory(prefix="turngym-adapter-", dir=_memory_folder()) as folder:
            (Path(folder) / "adapter_config.json").write_text(json.dumps(settings))
            save_file({name: t.cpu() for name, t in tensors.items()}, Path(folder) / "adapter_model.safetensors")
            self.add_lora(adapter_request(folder))
        manager = self.model_runner.lora_manager._adapter_manager
        if strange := sorted(manager.get_adapter(ADAPTER_ID).loras.keys() - manager.modules.keys()):
            raise WeightSyncError(
                f"{len(strange)} adapted layers have no place in the engine's model, among them {strange[:3]}; "
                f"it has places such as {sorted(manager.modules)[:3]}"
            )

    def turngym_skip_ranks(self) -> None:
        """Find out no token's rank among all: nobody asks for it, and on a CPU it costs more than the logprob.

        vLLM's second model runner has another sampler, and goes on as it was.
        """
        from vllm.v1.outputs import LogprobsTensors

        sampler = self.model_runner.sampler
        gather_ranked = getattr(sampler, "gather_logprobs", None)
        if gather_ranked is None:
            return

        def gather(logprobs_BV: torch.Tensor, num_top: int, token_ids: torch.Tensor) -> LogprobsTensors:
            if num_top:
                return gather_ranked(logprobs_BV, num_top, token_ids)
            ids_B1 = token_ids.unsqueeze(-1)
            return LogprobsTensors(ids_B1.to(torch.int32), logprobs_BV.gather(-1, ids_B1), torch.zeros_like(token_ids))

        sampler.gather_logprobs = gather

    def turngym_spare_seeds(self) -> None:
        """Keep a seeded request's random numbers for tokens that count.

        A prompt that is read in parts, or again, has tokens sampled that vLLM drops. Its first model runner takes the
        numbers back by an offset, which generators on a CPU have not, and dies of that.
        """
        runner = self.model_runner
        if self.device.type != "cpu" or not hasattr(runner, "discard_request_mask"):
            return
        sample_tokens = runner.sample_tokens

        def sample(*arguments: Any, **named: Any) -> Any:
            generators = runner.input_batch.generators
            is_dropped_B = runner.discard_request_mask.np[: runner.input_batch.num_reqs]
            spared = {
                place: generators.pop(place) for place in is_dropped_B.nonzero()[0].tolist() if place in generators
            }
            try:
                return sample_tokens(*arguments, **named)
            finally:
                generators.update(spared)

        runner.sample_tokens = sample

    def turngym_divide_logits(self, temperature: float) -> None:
        """Divide all logits from now on, so that a prompt's logprobs are those of this temperature."""
        from vllm.model_executor.layers.logits_processor import LogitsProcessor

        layers = [m for m in self.model_runner.get_model().modules() if isinstance(m, LogitsProcessor)]
        if not layers:
            raise ValueError("the model has no LogitsProcessor; it can only score at temperature 1")
        for layer in layers:
            layer.scale = layer.scale / temperature

    def _vllm_context(self) -> Any:
        from vllm.config import set_current_vllm_config

        return set_current_vllm_config(self.vllm_config)


def _refresh_tied_heads(model: torch.nn.Module) -> None:
    """Convert embeddings again, since a tied output head gets no weights of its own.

    On CPU it would keep computing with a packed copy of the old embedding.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding):
            module.quant_method.process_weights_after_loading(module)


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
