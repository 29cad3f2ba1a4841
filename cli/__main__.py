"""``python -m mmreplay_cli``."""

from . import main

main(prog_name="mmreplay")
