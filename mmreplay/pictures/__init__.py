"""Frames as images, PNG files and notebook cells, with numpy and the standard library alone."""
