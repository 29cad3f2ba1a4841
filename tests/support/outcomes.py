"""What comes of a call: nothing, or an error of the package."""

import mmreplay


def outcome(call):
    """``""``, or the error and what it says; other errors come through."""
    try:
        call()
    except mmreplay.MmreplayError as error:
        return f"{type(error).__name__}: {error}"
    return ""
