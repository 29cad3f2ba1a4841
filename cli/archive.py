"""``mmreplay push`` and ``pull``."""

from __future__ import annotations

import click

from .wording import count, echo_result, progress, size


@click.command("push")
@click.argument("path", type=click.Path())
@click.argument("url")
@click.option(
    "--grace",
    "grace_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=3600.0,
    show_default="an hour",
    help="Keep what is no longer needed for as long as a pull may take.",
)
@click.option(
    "--page",
    metavar="FOLDER",
    type=click.Path(),
    help="For hf://: add the web page that `mmreplay view --export FOLDER` has written.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was sent as one JSON object.")
def push(path: str, url: str, grace_s: float, page: str | None, as_json: bool) -> None:
    """Send the store at PATH to object storage, as it is now; its writers continue.

    URL is s3://BUCKET/NAME, gs://, az://, file:///DIRECTORY or hf://datasets/OWNER/NAME. It belongs
    to this store. Only what is not there yet is sent. If it is interrupted, the archive stays as it
    was, and the next call continues.
    """
    import mmreplay

    with progress("push") as show:
        done = mmreplay.push(path, url, grace_s=grace_s, page=page, progress=show)
    sent = "nothing to send"
    if done.sent_objects:
        sent = f"{size(done.sent_bytes)} in {count(done.sent_objects, 'object')} sent"
    gone = f"; {done.removed_objects:,} removed" if done.removed_objects else ""
    text = (
        f"{done.url}: {count(done.lanes, 'lane')}, {size(done.bytes)} in "
        f"{count(done.objects, 'object')}; {sent}{gone}"
    )
    echo_result(done, text, as_json=as_json)


@click.command("pull")
@click.argument("url")
@click.argument("path", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print what was received as one JSON object.")
def pull(url: str, path: str, as_json: bool) -> None:
    """Get the store that was pushed to URL, to PATH.

    Every byte is compared with its checksum. If a pull has made PATH before, only what is new is
    received. If it is interrupted, the next call continues.
    """
    import mmreplay

    with progress("pull") as show:
        done = mmreplay.pull(url, path, progress=show)
    text = (
        f"{done.path}: {count(done.transitions, 'transition')} in {count(done.lanes, 'lane')}, "
        f"{size(done.bytes)}; {size(done.received_bytes)} received"
    )
    echo_result(done, text, as_json=as_json)
