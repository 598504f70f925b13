"""What the learner reads of a run's configuration, group by group."""

from collections.abc import Mapping
from typing import Any, Protocol

from ...envs.options import DataOptions, EnvPoolOptions, RewardOptions
from ...executors.options import EvalOptions, RolloutOptions, VllmOptions
from ..options import (
    ActorOptions,
    AlgoOptions,
    CriticOptions,
    DsOptions,
    RefOptions,
    TeacherOptions,
    TrainOptions,
)
from .options import CkptOptions, LoggerOptions


class TrainSettings(Protocol):
    """The groups of options; the configuration composes them."""

    @property
    def agent(self) -> str | None: ...  # noqa: D102
    @property
    def agent_args(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def actor(self) -> ActorOptions: ...  # noqa: D102
    @property
    def critic(self) -> CriticOptions: ...  # noqa: D102
    @property
    def data(self) -> DataOptions: ...  # noqa: D102
    @property
    def reward(self) -> RewardOptions: ...  # noqa: D102
    @property
    def rollout(self) -> RolloutOptions: ...  # noqa: D102
    @property
    def train(self) -> TrainOptions: ...  # noqa: D102
    @property
    def algo(self) -> AlgoOptions: ...  # noqa: D102
    @property
    def eval(self) -> EvalOptions: ...  # noqa: D102
    @property
    def vllm(self) -> VllmOptions: ...  # noqa: D102
    @property
    def ds(self) -> DsOptions: ...  # noqa: D102
    @property
    def ref(self) -> RefOptions: ...  # noqa: D102
    @property
    def teacher(self) -> TeacherOptions: ...  # noqa: D102
    @property
    def env_pool(self) -> EnvPoolOptions: ...  # noqa: D102
    @property
    def ckpt(self) -> CkptOptions: ...  # noqa: D102
    @property
    def logger(self) -> LoggerOptions: ...  # noqa: D102
