"""`textarena/GAME`: the games of the package `textarena`, alone, against a fixed opponent, or both sides by the policy.

A player's conversation holds what the game told this player since its last turn; what it said itself stands there as it
was sampled. Rewards come at the end, one for each side.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ...errors import ConfigError, EnvError, RewardError, UnknownNameError
from ...registry import nearest
from ..base import Env, StepResult
from ..registration import Collection
from .extras import import_extra
from .private_random import PrivateRandom
from .textarena_opponent import Opponent, load_opponent
from .textarena_texts import seen_by

SIDES = 2
RESTARTS = 20
MAX_OPPONENT_MOVES = 100  # without a move of the model's; more can only be a game that goes nowhere


class TextArena(Env):
    """A game of one player, or of two.

    Args:
        game: Its id, such as `TicTacToe-v0`; not its variants `-raw` and `-train`, which differ in what is repeated.
        sides: In a game of two, whether one side is the policy's or `both` are, each in an episode of its own.
        opponent: Where one is: the other side, which is not trained. "module:attribute" or "file.py:attribute" of a
            function (or one of TextArena's agents) from what it sees to what it says; or the URL of an
            OpenAI-compatible server.
        opponent_model: The name of the model there; by default the first that it lists.
        player: Where one is: which side is the policy's, 0 or 1; by default each task's seed says.
        **options: The game's own.
    """

    def __init__(
        self,
        game: str,
        *,
        sides: Literal["one", "both"] = "one",
        opponent: str | None = None,
        opponent_model: str | None = None,
        player: int | None = None,
        **options: Any,
    ) -> None:
        self._name = f"textarena/{game}"
        self._random = PrivateRandom()
        self._env = _made(game, options, self._random)
        self._num_players = _num_players(self._env, self._name, self._random)
        _check(self._name, self._num_players, sides, opponent or opponent_model, player)
        self._are_both_ours = sides == "both"
        self._opponent: Opponent | None = None if opponent is None else load_opponent(opponent, opponent_model)
        self._fixed_player = player
        self._player = 0
        self._is_running = False

    @classmethod
    def num_sides(cls, kwargs: Mapping[str, Any]) -> int:
        """Say how many episodes of the policy one game is."""
        return SIDES if kwargs.get("sides") == "both" else 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin a game by the task's seed; `info["side"]` says whose turn it is."""
        task = self._draw(seed, options)
        self._player = 0
        if self._opponent is not None:
            drawn = int(self.np_random.integers(SIDES))
            self._player = drawn if self._fixed_player is None else self._fixed_player
        self._begin(0 if task.seed is None else task.seed)
        self._is_running = True
        side, text = self._look()
        return text, {"side": side}

    def step(self, action: str) -> StepResult:
        """Make a move, and those of an opponent after it.

        `info["side"]` says whose turn is next; at the end `info["rewards"]` has the reward of each side, and the one
        returned is that of who moved, or of the policy's side.
        """
        if not self._is_running:
            raise EnvError(f"{self._name}: step was called with no game running; call reset first")
        mover = self._env.state.current_player_id
        if not (self._move(str(action)) or self._opponents_moves()):
            side, text = self._look()
            return text, 0.0, False, False, {"side": side}
        self._is_running = False
        rewards = self._rewards()
        scores = [_score(reward, self._num_players) for reward in rewards]
        own = mover if self._are_both_ours else self._player
        info = {"score": scores[own], "rewards": rewards, "scores": scores}
        return "", rewards[own], True, False, info

    def _begin(self, seed: int) -> None:
        """Begin a game that the policy comes to play in: one that the opponent ends first says nothing of it."""
        for restart in range(RESTARTS):
            game_seed = (seed + restart * 7919) % (1 << 31)
            self._random.seed(game_seed)
            with self._random.in_place():
                self._env.reset(num_players=self._num_players, seed=game_seed)
            if self._opponent is not None:
                self._opponent.begin()
            if not self._opponents_moves():
                return
        raise EnvError(f"{self._name}: the opponent ended {RESTARTS} games before the policy's first turn")

    def _move(self, action: str) -> bool:
        with self._random.in_place():
            is_over, _ = self._env.step(action)
        return bool(is_over)

    def _opponents_moves(self) -> bool:
        """Let the opponent move until it is the policy's turn, or return that the game is over."""
        if self._opponent is None:
            return False
        for _ in range(MAX_OPPONENT_MOVES):
            if self._env.state.current_player_id == self._player:
                return False
            _, text = self._look()
            if self._move(self._opponent.answer(text)):
                return True
        raise EnvError(f"{self._name}: the opponent made {MAX_OPPONENT_MOVES} moves without a turn of the policy's")

    def _look(self) -> tuple[int, str]:
        """Return whose turn it is, and what is new to that player."""
        with self._random.in_place():
            side, messages = self._env.get_observation()
        return int(side), seen_by(int(side), messages, self._env.state, self._num_players) or "Your turn."

    def _rewards(self) -> list[float]:
        rewards, _ = self._env.close()
        if not rewards or any(side not in rewards for side in range(self._num_players)):
            raise RewardError(f"{self._name} ended with the rewards {rewards!r}; wanted one for each player")
        return [float(rewards[side]) for side in range(self._num_players)]


def _made(game: str, options: dict[str, Any], generator: PrivateRandom) -> Any:
    """Make a game that shows what is new, with the wrappers that mend actions."""
    textarena = import_extra("textarena", "textarena", "textarena")
    known = _registry()
    if game not in known:
        raise UnknownNameError(f"unknown environment 'textarena/{game}'.{nearest(game, known)}")
    try:
        with generator.in_place():
            env = textarena.make(f"{game}-raw", **options)
    except TypeError as error:
        raise ConfigError(f"textarena/{game} does not take {options}: {error}") from error
    except (LookupError, OSError, SyntaxError, ImportError, ValueError) as error:
        raise ConfigError(
            f"textarena/{game} cannot be made here: {type(error).__name__}: {_one_line(error)}. Some games need word "
            "lists of nltk (nltk.download), keys of a model provider, or a newer Python"
        ) from error
    for wrapper in known[game].default_wrappers or []:
        if issubclass(wrapper, textarena.ActionWrapper):
            env = wrapper(env)
    return env


def _one_line(error: Exception) -> str:
    return " ".join(str(error).strip("* \n").split())[:200].rstrip(".")


def _num_players(env: Any, name: str, generator: PrivateRandom) -> int:
    """Return 1 or 2: nothing but beginning a game tells, and games refuse wrong numbers in all sorts of ways."""
    single = import_extra("textarena", "textarena", "textarena").SinglePlayerState
    refusal: Exception | None = None
    for number in (1, SIDES):
        try:
            with generator.in_place():
                env.reset(num_players=number, seed=0)
        except Exception as error:
            refusal = error
            continue
        if isinstance(env.state, single) == (number == 1):
            return number
    raise ConfigError(f"{name} is no game of one or two players ({type(refusal).__name__}: {refusal})")


def _check(name: str, num_players: int, sides: str, opponent: str | None, player: int | None) -> None:
    if num_players == 1 and (sides, opponent, player) != ("one", None, None):
        raise ConfigError(f"{name} has one player; it takes neither sides, opponent nor player")
    if num_players == SIDES and sides == "one" and opponent is None:
        raise ConfigError(
            f"{name} has two players: give the other side with --agent_args.opponent file.py:function (or a URL), "
            "or let the policy play both with --agent_args.sides both"
        )
    if sides == "both" and (opponent is not None or player is not None):
        raise ConfigError(f"{name} with sides both takes neither opponent nor player")
    if player is not None and player not in range(SIDES):
        raise ConfigError(f"{name}: player is 0 or 1, got {player}")


def _score(reward: float, num_players: int) -> float:
    """Return a reward as 0 to 1: games of two give -1 for lost and 1 for won."""
    return min(1.0, max(0.0, reward if num_players == 1 else (1.0 + reward) / 2))


def _registry() -> dict[str, Any]:
    known = import_extra("textarena.envs.registration", "textarena", "textarena").ENV_REGISTRY
    return {name: spec for name, spec in known.items() if f"{name}-raw" in known}


def _names() -> Iterable[str]:
    return sorted(_registry())


COLLECTION = Collection(target=f"{__name__}:TextArena", parameter="game", names=_names)
