"""A disk that loses power, and every place at which it can."""
