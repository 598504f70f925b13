"""Which models a run needs, and which of them share their ranks."""

from dataclasses import dataclass

from ..advantages import NEEDS_VALUES
from ..run.settings import TrainSettings
from .roles import Role


@dataclass(frozen=True)
class GroupPlan:
    """Some models on the same ranks; the actor's group comes first and has the first rank of the run."""

    roles: tuple[Role, ...]
    num_ranks: int | None  # None: what the actor has by default


def plan_roles(settings: TrainSettings) -> list[GroupPlan]:
    """Return the groups of ranks; a role without ranks of its own shares the actor's."""
    actor, critic, ref, reward = settings.actor, settings.critic, settings.ref, settings.reward
    uses_critic = settings.algo.advantage.estimator in NEEDS_VALUES
    own: dict[Role, tuple[bool, int | None, int]] = {
        "reference": (settings.algo.kl.init_coef != 0, ref.num_gpus_per_node, ref.num_nodes),
        "critic": (uses_critic, critic.num_gpus_per_node, critic.num_nodes),
        "reward": (reward.model_name_or_path is not None, reward.num_gpus_per_node, reward.num_nodes),
    }
    shared: list[Role] = ["actor"]
    groups: list[GroupPlan] = []
    for role, (is_wanted, per_node, num_nodes) in own.items():
        if not is_wanted:
            continue
        # With adapters the actor's own base weights are the reference.
        is_within_actor = role == "reference" and bool(settings.ds.lora.rank)
        if per_node is None or is_within_actor or settings.train.colocate_all:
            shared.append(role)
        else:
            groups.append(GroupPlan((role,), per_node * num_nodes))
    num_ranks = None if actor.num_gpus_per_node is None else actor.num_gpus_per_node * actor.num_nodes
    return [GroupPlan(tuple(shared), num_ranks), *groups]
