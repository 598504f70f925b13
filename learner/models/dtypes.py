"""The dtypes that a model may be loaded in."""

import torch

from ...errors import ConfigError

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def check_trainable(param_dtype: str) -> None:
    """Check that DeepSpeed trains in this dtype on this process's device.

    Raises:
        ConfigError: It does not; CPUs without AMX or AVX-512 of a kind have no fp16.
    """
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    if DTYPES[param_dtype] not in accelerator.supported_dtypes():
        others = " or ".join(name for name, dtype in DTYPES.items() if dtype in accelerator.supported_dtypes())
        raise ConfigError(
            f"--ds.param_dtype {param_dtype}: DeepSpeed does not train in it on this machine's "
            f"{accelerator.device_name()}; give {others}"
        )
