"""Losses are counted under the words that say them."""

from mmreplay.exchange.losses import Loss, Losses


def test_losses_are_summed_up_in_the_order_in_which_they_came():
    losses = Losses()
    losses.add("flags")
    losses.add("texts", 3)
    losses.add("flags", 2)
    losses.add("nothing", 0)
    assert losses.all() == (Loss("flags", 3), Loss("texts", 3))
    assert losses.all()[0].to_json() == {"what": "flags", "count": 3}
