"""Frames as images and PNG files, with numpy and the standard library alone."""
