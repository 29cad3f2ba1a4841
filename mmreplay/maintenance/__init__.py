"""Work on whole stores: verify, repair, snapshot."""
