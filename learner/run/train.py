"""`turngym train`: from a configuration to a trained model."""

from .inputs import check_inputs
from .settings import TrainSettings


def train(settings: TrainSettings, config_text: str) -> int:
    """Run to the end, or until interrupted; return the exit code.

    Args:
        settings: The configuration.
        config_text: The same as YAML, kept in the run folder.

    Raises:
        ConfigError: Something asked for cannot be; nothing has been loaded then.
        TurnGymError: The run failed; what it had is in its folder.
    """
    inputs = check_inputs(settings)
    # Imported here, so that a mistake shows within a second and without torch.
    from .session import run_session

    return run_session(settings, inputs, config_text)
