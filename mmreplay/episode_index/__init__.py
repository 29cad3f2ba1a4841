"""Which entries are transitions, and where their episodes lie: nothing else knows."""

from mmreplay.episode_index.finals import EPISODE_DTYPE, LaneEpisodes
from mmreplay.episode_index.gaps import Gaps, floor_row
from mmreplay.episode_index.index import Index, Sources, Transitions
from mmreplay.episode_index.steps import Span, Steps

__all__ = [
    "EPISODE_DTYPE",
    "Gaps",
    "Index",
    "LaneEpisodes",
    "Sources",
    "Span",
    "Steps",
    "Transitions",
    "floor_row",
]
