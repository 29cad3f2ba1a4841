"""Which rows and cells are transitions, and where their episodes lie: nothing else knows."""

from mmreplay.episode_index.earlier_index import EarlierIndex
from mmreplay.episode_index.episodes import EPISODE_DTYPE, LaneEpisodes
from mmreplay.episode_index.index import Index, Transitions
from mmreplay.episode_index.joined_index import JoinedIndex
from mmreplay.episode_index.oldest import (
    first_row,
    first_tick,
    floor_row,
    floor_tick,
)
from mmreplay.episode_index.row_index import RowIndex
from mmreplay.episode_index.steps import UNKNOWN, Span, Steps
from mmreplay.episode_index.tick_index import TickIndex
from mmreplay.episode_index.tick_source import TickSource

__all__ = [
    "EPISODE_DTYPE",
    "UNKNOWN",
    "EarlierIndex",
    "Index",
    "JoinedIndex",
    "LaneEpisodes",
    "RowIndex",
    "Span",
    "Steps",
    "TickIndex",
    "TickSource",
    "Transitions",
    "first_row",
    "first_tick",
    "floor_row",
    "floor_tick",
]
