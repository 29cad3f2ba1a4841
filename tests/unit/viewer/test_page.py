"""The files of the page."""

import re
from pathlib import Path

from mmreplay import viewer
from mmreplay.viewer.page import POLICY, page_files

STATIC = Path(viewer.__file__).parent / "static"
MOST_BYTES = 150_000


def test_every_file_is_served_with_its_type():
    files = page_files()
    assert set(files) == {one.name for one in STATIC.iterdir()}
    assert files["index.html"].media_type.startswith("text/html")
    assert files["app.js"].media_type.startswith("text/javascript")
    assert len({one.etag for one in files.values()}) == len(files)


def test_the_page_has_at_most_150_kb_with_its_library_and_licence():
    assert sum(len(one.body) for one in page_files().values()) <= MOST_BYTES
    assert b"MIT License" in page_files()["uPlot-LICENSE.txt"].body


def test_the_page_has_the_policy_of_the_server_in_it_and_no_inline_script_or_style():
    text = page_files()["index.html"].body.decode()
    assert POLICY in text
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bon\w+=|\bstyle=", text)


def test_own_scripts_name_no_host_and_never_make_elements_of_text():
    for name, file in page_files().items():
        text = file.body.decode()
        if name.endswith(".js") and name != "uPlot.js":
            assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacent|eval\(", text), name
            assert not re.search(r"document\.write|setAttribute\(\"style|new Function", text), name


def test_every_module_that_is_imported_is_there():
    for name, file in page_files().items():
        if name.endswith(".js") and name != "uPlot.js":
            for imported in re.findall(r'from "\./([^"]+)"', file.body.decode()):
                assert imported in page_files(), (name, imported)
