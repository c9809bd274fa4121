"""Settings of the manual: `make docs` builds it with warnings as errors."""

import bilevel

project = "bilevel"
author = "The bilevel authors"
copyright = "2026, The bilevel authors"
release = version = bilevel.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
autosummary_generate = True
numpydoc_show_class_members = False
exclude_patterns = ["_build", "gallery/README.rst", "gallery/GALLERY_HEADER.rst"]
html_theme = "pydata_sphinx_theme"
html_theme_options = {"show_prev_next": False}

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": "/plot_",
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 3600,
}
