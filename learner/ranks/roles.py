"""Who is who among the learner's models, and which group of ranks holds which."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..batch import Batch
from ..losses.aggregations import Totals
from ..metrics import Metrics

if TYPE_CHECKING:
    import torch

    from .group import Ranks

Role = Literal["actor", "reference", "critic", "reward"]


class AnyObjective(Protocol):
    """What a role is trained with; picklable, the same on every rank."""

    @property
    def needs_all_sequences(self) -> bool:
        """Whether a sequence without any advantage still has a gradient."""
        ...

    def of_model(
        self, model: "torch.nn.Module", batch: Batch, totals: Totals, device: "torch.device | str"
    ) -> tuple["torch.Tensor", Metrics]:
        """Run the model over a micro-batch; return its share of the loss, and its metrics."""
        ...


class Roles:
    """The groups of ranks, each asked for the models that it holds.

    Args:
        groups: The ranks and the roles whose models they hold.
    """

    def __init__(self, groups: Sequence[tuple[tuple[Role, ...], "Ranks"]]) -> None:
        self._groups = list(groups)
        self._by_role: Mapping[Role, Ranks] = {role: ranks for roles, ranks in groups for role in roles}

    def __contains__(self, role: object) -> bool:
        return role in self._by_role

    def __getitem__(self, role: Role) -> "Ranks":
        """Return the ranks that hold the role's model."""
        return self._by_role[role]

    def __iter__(self) -> Iterator["Ranks"]:
        """Go through the groups, each once."""
        return (ranks for _, ranks in self._groups)

    def request_stop(self) -> None:
        """End what runs at the next micro-batch."""
        for ranks in self:
            ranks.request_stop()

    def save(self, folder: str, tag: str, state: dict[str, Any]) -> None:
        """Write every trained model's part of a checkpoint."""
        for roles, ranks in self._groups:
            if "actor" in roles or "critic" in roles:
                ranks.save(folder, tag, state)

    def load(self, folder: str, tag: str) -> None:
        """Read what `save` wrote."""
        for roles, ranks in self._groups:
            if "actor" in roles or "critic" in roles:
                ranks.load(folder, tag)

    def close(self) -> None:
        """End all ranks."""
        for ranks in self:
            ranks.close()
