"""Links from a page to a file of the repository that is no page: on the site they lead to the file
where the repository is (GITHUB_REPOSITORY, in a workflow), else to the file on this disk.
"""

import os
import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s:#]+)(#[^)\s]*)?\)")
_LOG = logging.getLogger(__name__)


def base() -> str:
    if (repository := os.environ.get("GITHUB_REPOSITORY")) is None:
        return ROOT.as_uri()
    return f"{os.environ['GITHUB_SERVER_URL']}/{repository}/blob/{os.environ['GITHUB_SHA']}"


def leave_the_site(site: Sphinx, page: str, source: list[str]) -> None:
    """Rewrites links that lead out of docs/."""
    folder = Path(site.env.doc2path(page)).parent

    def rewritten(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(DOCS) or not target.is_relative_to(ROOT):
            return link[0]
        if not target.exists():
            _LOG.warning("no such file: %s", link[2], location=page)
        # HTML, since Markdown takes no link to a file of a disk
        return f'<a href="{base()}/{target.relative_to(ROOT)}{link[3] or ""}">{link[1]}</a>'

    source[0] = _LINK.sub(rewritten, source[0])


def setup(site: Sphinx) -> dict[str, bool]:
    site.connect("source-read", leave_the_site)
    return {"parallel_read_safe": True}
