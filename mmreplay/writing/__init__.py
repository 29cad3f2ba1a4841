"""One writer a lane: creating, appending, flushing, sealing, closing, recovering."""
