"""Writers of a store made with ``finite=True``: they look at each value before it is stored.

Invariant: what is refused has changed nothing; a writer of another store looks at nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.writing.finite_values import FiniteValues
from mmreplay.writing.vector_writer import VectorWriter
from mmreplay.writing.writer import Writer

__all__ = ["FiniteVectorWriter", "FiniteWriter"]


class FiniteWriter(Writer):
    """A `Writer` that raises SchemaError of a value that is not finite."""

    def _attach(self) -> None:
        super()._attach()
        self._finite = FiniteValues(self.schema, self.path, many=False)

    def reset(self, frame: object) -> None:
        """See `Writer.reset`."""
        self._finite.check_frames(frame)
        super().reset(frame)

    def step(
        self,
        action: Any,
        reward: Any,
        next_frame: Any,
        terminated: object = False,
        truncated: object = False,
        *,
        life_lost: object = False,
        **extras: Any,
    ) -> None:
        """See `Writer.step`."""
        self._finite.check_step(action, reward, next_frame, extras)
        super().step(
            action, reward, next_frame, terminated, truncated, life_lost=life_lost, **extras
        )


class FiniteVectorWriter(VectorWriter):
    """A `VectorWriter` that raises SchemaError of a value that is not finite."""

    def _attach(self) -> None:
        super()._attach()
        self._finite = FiniteValues(self.schema, self.path, many=True)

    def reset(self, frames: Any, mask: npt.ArrayLike | None = None) -> None:
        """See `VectorWriter.reset`."""
        self._finite.check_frames(frames, self._of_mask(mask))
        super().reset(frames, mask)

    def step(
        self,
        actions: Any,
        rewards: Any,
        frames: Any,
        terminated: Any,
        truncated: Any,
        *,
        life_lost: npt.ArrayLike | None = None,
        mask: npt.ArrayLike | None = None,
        **extras: Any,
    ) -> None:
        """See `VectorWriter.step`."""
        self._finite.check_step(actions, rewards, frames, extras, self._of_mask(mask))
        super().step(
            actions,
            rewards,
            frames,
            terminated,
            truncated,
            life_lost=life_lost,
            mask=mask,
            **extras,
        )

    def _of_mask(self, mask: npt.ArrayLike | None) -> npt.NDArray[np.bool_] | None:
        """The environments that count; of others anything may be given."""
        return None if mask is None else self._values.flags("mask", mask)
