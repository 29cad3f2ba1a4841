"""Lines of Python in each room, beside what docs/design.md allows: ``make lint``."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_ROW = re.compile(
    r"^\| (?:`(?P<room>\w+)/`|the modules beside them) \| (?P<most>[\d,]+) \|", re.MULTILINE
)


def over_budget(root=ROOT):
    """A sentence for each room that has too many lines, or no budget, or is not there."""
    package, out = root / "mmreplay", []
    rooms = {one.name for one in package.iterdir() if (one / "__init__.py").is_file()} | {"cli"}
    for found in _ROW.finditer((root / "docs" / "design.md").read_text("utf-8")):
        room, most = found["room"], int(found["most"].replace(",", ""))
        if room is None:
            files = package.glob("*.py")
        else:
            if room not in rooms:
                out.append(
                    f"{room}/: docs/design.md has a budget for it, but there is no such room"
                )
            rooms.discard(room)
            files = (root if room == "cli" else package).joinpath(room).rglob("*.py")
        lines = sum(len(one.read_text("utf-8").splitlines()) for one in files)
        if lines > most:
            name = room or "the modules beside the rooms"
            out.append(
                f"{name}: expected at most {most:,} lines, as docs/design.md says; {lines:,}"
            )
    return out + [f"{room}/: has no budget in docs/design.md" for room in sorted(rooms)]


if __name__ == "__main__":
    sys.exit("\n".join(over_budget()) or 0)
