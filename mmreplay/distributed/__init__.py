"""Actors on many machines, one store beside the learner: see docs/distributed.md.

Invariant: blocks, sender, receiver and limiter know nothing of what carries their calls, and
nothing here imports Ray before it is used.
"""

from mmreplay.distributed.buffer import buffer
from mmreplay.distributed.ray_data import read, write
from mmreplay.distributed.run import Run
from mmreplay.distributed.sender import SendingVectorWriter, SendingWriter

__all__ = ["Run", "SendingVectorWriter", "SendingWriter", "buffer", "read", "write"]
