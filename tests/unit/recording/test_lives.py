"""Lives left, as environments tell them."""

import numpy as np
import pytest

from mmreplay import SchemaError
from mmreplay.recording.lives import lives_of_all, lives_of_one


def test_lives_are_copied_from_what_is_told():
    assert lives_of_one(np.int64(3)) == 3
    told = np.array([1, 2])
    lives = lives_of_all(told)
    told[:] = 0
    assert lives.tolist() == [1, 2]


@pytest.mark.parametrize(("lives", "told"), [(lives_of_one, None), (lives_of_all, None)])
def test_an_environment_without_lives_is_refused(lives, told):
    with pytest.raises(SchemaError, match=r"life_loss: .* no 'lives'; leave life_loss out"):
        lives(told)
