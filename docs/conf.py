"""How Sphinx makes the site: `make docs`."""

import sys
from pathlib import Path

from brimful import __version__

sys.path.insert(0, str(Path(__file__).parent / "site"))

project = "brimful"
author = "The brimful authors"
copyright = author
release = __version__
extensions = ["myst_parser", "from_code", "links"]
exclude_patterns = ["site"]
myst_enable_extensions = ["attrs_block", "colon_fence"]
myst_heading_anchors = 4  # links to headings, as GitHub has them
smartquotes = False  # -- is a flag here
suppress_warnings = ["misc.highlighting_failure"]  # shortened output
html_theme = "furo"
html_title = "brimful"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["wide_tables.css"]
