"""Which GPUs a process of the run uses: those that Ray gave its actor, whatever the variable showed before.

Ray sets `CUDA_VISIBLE_DEVICES` itself, but not where `RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES` forbids it: every
process would then take the first GPU of the node. And it sets it to nothing for an actor that asked for none, though
the actor may sit in a bundle that has one.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import WorkerError

VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Assignment:
    """What Ray says of an actor.

    Attributes:
        gpu_ids: The GPUs it was given, as the variable names them.
        resources: All it was given, by name; those of a bundle have the bundle's number and group in their names.
        placement_group: The group of its bundle; None where it has none.
    """

    gpu_ids: tuple[str, ...]
    resources: Mapping[str, float]
    placement_group: str | None

    def __str__(self) -> str:
        bundle = "in no bundle" if self.placement_group is None else f"in a bundle of group {self.placement_group}"
        return f"{bundle}, with {', '.join(f'{name} {n:g}' for name, n in sorted(self.resources.items())) or 'nothing'}"


def own_assignment() -> Assignment:
    """Return what Ray says of the actor that asks."""
    import ray

    context = ray.get_runtime_context()
    return Assignment(
        gpu_ids=tuple(sorted(context.get_accelerator_ids().get("GPU", ()))),  # Ray keeps them in a set
        resources=context.get_assigned_resources(),
        placement_group=context.get_placement_group_id(),
    )


def devices_of(
    actor: str, assignment: Assignment, environment: Mapping[str, str], *, count: int, shares: bool = False
) -> tuple[str, ...] | None:
    """Return the GPUs that an actor is to see, as the variable names them; None: all of the node.

    Args:
        actor: Its name, for messages.
        assignment: What Ray says of it.
        environment: Of its process.
        count: GPUs that it works on.
        shares: It was given none on purpose, and works on what others were given.

    Raises:
        WorkerError: It cannot have them; the message names actor, bundle and variable.
    """
    shown = environment.get(VARIABLE)
    seen = None if shown is None else tuple(name.strip() for name in shown.split(",") if name.strip())
    devices = seen if shares and not assignment.gpu_ids else assignment.gpu_ids
    where = f"{actor} ({assignment})"
    state = f"{VARIABLE} is " + ("not set" if shown is None else repr(shown))
    if devices is None:
        return None
    if not devices and not shares:
        raise WorkerError(f"{where} works on {count} GPUs and was given none by Ray; {state}: give it num_gpus")
    if len(devices) < count or (len(devices) > count and not shares):
        raise WorkerError(
            f"{where} works on {count} GPUs and has {', '.join(devices) or 'none'}; {state}: "
            "does Ray, or the machine's own start-up, hide the others?"
        )
    if seen is not None and not set(devices) <= set(seen):
        raise WorkerError(
            f"{where} was given GPU {', '.join(devices)} by Ray, and {state}, which hides it: who sets the variable "
            "after Ray did?"
        )
    return devices


def take_devices(actor: str, *, count: int = 1, shares: bool = False) -> tuple[str, ...] | None:
    """Let this process, and all that it starts, see the GPUs of its actor only; before anything asks CUDA.

    Raises:
        WorkerError: See `devices_of`.
    """
    devices = devices_of(actor, own_assignment(), os.environ, count=count, shares=shares)
    if devices is not None:
        os.environ[VARIABLE] = ",".join(devices)
    print(f"{actor} uses GPU {'any of this node' if devices is None else ', '.join(devices)}", flush=True)
    return devices
