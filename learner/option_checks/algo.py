"""Whether options of the correction and of the KL do what they say; torch-free, so that a mistake shows at once."""

from ...errors import ConfigError
from ..run.settings import TrainSettings


def check_correction(settings: TrainSettings) -> None:
    """Refuse a bound of the correction that its mode does not have."""
    advantage = settings.algo.advantage
    bounds = advantage.is_correction_threshold or ()
    is_truncated = advantage.is_correction_mode == "truncate" and advantage.is_correction_type is None
    if is_truncated and advantage.is_correction_level != "off" and len(bounds) == 2 and bounds[0] > 0:
        raise ConfigError(
            f"--algo.advantage.is_correction_threshold {bounds[0]} {bounds[1]}: --algo.advantage.is_correction_mode "
            "truncate has an upper bound only; give one number, or the mode clip"
        )


def kl_complaints(settings: TrainSettings) -> list[str]:
    """Return what can be meant and rarely is."""
    kl = settings.algo.kl
    if kl.init_coef and kl.use_loss and kl.estimator == "k1" and not kl.unbiased_gradient:
        return [
            "--algo.kl.use_loss with --algo.kl.estimator k1 has a gradient of 0 on average, so the KL holds nothing "
            "back: use k2 or k3, or add --algo.kl.unbiased_gradient"
        ]
    return []
