"""What people train from: datasets, replay buffers, mixtures."""
