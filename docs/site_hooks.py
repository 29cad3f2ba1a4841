"""Files outside docs/ that a document links to, on the site: the README is its first page.

Links are written for a reader of the repository, relative to the document; here they become those
between pages. So a document needs no address of a host, and one way of linking serves both.
"""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"""(?P<before>\]\(|(?:src|srcset)=")(?P<path>[^)\s#":]+)(?=[)#"])""")


def on_files(files, config):
    """Add the README, and what is linked from one document to the next."""
    found = {ROOT / "README.md"}
    waiting = [*found, *(Path(page.abs_src_path) for page in files.documentation_pages())]
    while waiting:
        path = waiting.pop()
        name = _name_on_site(path)
        if name not in files.src_uris:
            files.append(File.generated(config, name, abs_src_path=str(path)))
        if path.suffix == ".md":
            links = LINK.finditer(path.read_text(encoding="utf-8"))
            linked = {(path.parent / link["path"]).resolve() for link in links}
            waiting += [target for target in linked - found if target.is_file()]
            found |= linked
    return files


def on_page_markdown(markdown, page, **_):
    """Links between pages, for those between files."""
    source = Path(page.file.abs_src_path)
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["toc"]  # room for the wide table
    start = Path(page.file.src_uri).parent

    def on_site(link):
        target = (source.parent / link["path"]).resolve()
        if not target.is_file():
            return link[0]
        return link["before"] + os.path.relpath(_name_on_site(target), start)

    return LINK.sub(on_site, markdown)


def _name_on_site(path):
    name = path.relative_to(ROOT).as_posix()
    return "index.md" if name == "README.md" else name.removeprefix("docs/")
