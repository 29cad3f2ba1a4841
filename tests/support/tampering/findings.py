"""What `verify` found, as texts."""

from mmreplay import verify


def texts(report):
    return [str(one) for one in report.findings]


def messages(path, file):
    """What is found, which must all be about one file."""
    report = verify(path)
    assert {one.file for one in report.findings} == {file}, texts(report)
    return [one.message for one in report.findings]
