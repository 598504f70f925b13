"""What a TextArena player reads: what is new since its last turn, without what it said itself."""

from collections.abc import Sequence
from typing import Any


def seen_by(player: int, messages: Sequence[tuple[int, str, Any]], state: Any, num_players: int) -> str:
    """Return new messages as one text: what others said under their names, and of several boards only the last.

    Args:
        player: Who reads.
        messages: Sender (-1: the game), text and kind of each; Any: the package's own enumeration.
        state: The game's, for the names of the players.
        num_players: In a game of one all actions are this player's, whoever the game says sent them.
    """
    last_board = max((i for i, (_, _, kind) in enumerate(messages) if kind.name == "GAME_BOARD"), default=-1)
    lines = []
    for place, (sender, text, kind) in enumerate(messages):
        is_own = kind.name == "PLAYER_ACTION" and (num_players == 1 or sender == player)
        if is_own or (kind.name == "GAME_BOARD" and place != last_board):
            continue
        lines.append(text.strip() if sender < 0 else f"[{_name(sender, state)}] {text.strip()}")
    return "\n\n".join(line for line in lines if line)


def _name(player: int, state: Any) -> str:
    return str((state.role_mapping or {}).get(player, f"Player {player}"))
