"""Every error TurnGym raises on purpose.

A message tells what was wanted, what came, and what to do. `ConfigError` and its children are the
user's mistakes (exit code 2); the others are the run's.
"""


class TurnGymError(Exception):
    """Root of all of TurnGym's errors."""


class ConfigError(TurnGymError, ValueError):
    """An option, a name or a file that the user gave cannot be used."""


class DataError(ConfigError):
    """A dataset lacks what its options name, or a row cannot be used."""


class UnknownNameError(ConfigError, LookupError):
    """A name is not registered; the message suggests the nearest one that is."""


class MissingPackageError(ConfigError, ImportError):
    """An optional package is needed and not installed; the message says how to add it."""


class EnvError(TurnGymError, RuntimeError):
    """An environment broke its contract or failed for a reason of its own."""


class EnvUnavailableError(EnvError):
    """An environment could not be used in time: its kind is failing, or too many wait for it."""


class LoopBlockedError(EnvError):
    """An event loop was blocked by one coroutine, and another could not go on; the message says whose fault it was."""


class NoTurnError(EnvError):
    """A game was over before one of its sides had a turn; that side has nothing to learn from."""


class ToolServerError(EnvError):
    """A server of tools or environments is down, or answers what its protocol does not know; never a reward of 0."""


class ToolError(TurnGymError, RuntimeError):
    """A tool call could not be answered, and the model is told why; it may call otherwise. No failure."""


class RewardError(TurnGymError, RuntimeError):
    """A reward function failed or returned something that is not a reward."""


class GraderError(TurnGymError, RuntimeError):
    """A grader could not give a verdict; never to be read as reward 0."""


class WorkerError(TurnGymError, RuntimeError):
    """A worker process died, or ran out of its time or memory."""


class EnvLostError(WorkerError):
    """An environment is gone with the worker that hosted it, for no fault of its own."""


class SandboxError(TurnGymError, RuntimeError):
    """A sandbox failed; it says nothing about the program that ran in it, and is never to be read as reward 0."""


class SandboxDeadError(SandboxError):
    """A session is closed, or gone by the doing of what ran in it; nothing of this call was run."""


class SandboxLostError(SandboxError):
    """A program or a session was ended by nothing of its own doing; what it held is gone, and so is its outcome."""


class SandboxUnavailableError(ConfigError):
    """A sandbox cannot work on this machine; the message says what is missing and how to get it."""


class ProgramError(TurnGymError, ValueError):
    """A program cannot be run as given: no text, empty, too long, a path out of its folder."""


class ForkRefusedError(ProgramError):
    """What ran in a session keeps it from being forked; the program's doing, and no failure of the sandbox."""


class TemplateError(TurnGymError, ValueError):
    """A chat template cannot render these messages."""


class ImageError(TemplateError):
    """An image cannot be read, or has no place in what the model reads."""


class TrajectoryError(TurnGymError, ValueError):
    """Arrays that must have one length do not, or a token is accounted for twice."""


class ScheduleError(TurnGymError, RuntimeError):
    """A run cannot do again what another one did; the message says where they part."""


class StoreError(TurnGymError, OSError):
    """Something that is kept for eyes could not be written; what was there before is as it was."""


class EngineError(TurnGymError, RuntimeError):
    """An engine could not answer one request."""


class EngineDeadError(EngineError):
    """An engine is gone; its requests belong on another, and it needs a restart."""


class LearnerError(TurnGymError, RuntimeError):
    """A learner rank failed or lost its peers."""


class WeightSyncError(TurnGymError, RuntimeError):
    """Weights did not arrive in an engine as they left the learner."""


class CheckpointError(TurnGymError, RuntimeError):
    """A checkpoint is missing, cut off or of another run."""


class DeadlineError(TurnGymError, TimeoutError):
    """Something took longer than its deadline; the message names it and the deadline."""
