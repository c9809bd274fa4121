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


def keep_mathematics(app, what, name, obj, options, lines):
    """Docstrings write |y| and a * b as mathematics does: neither is markup."""
    code = False
    for k, line in enumerate(lines):
        code = line.lstrip().startswith((">>>", "...")) or (code and bool(line.strip()))
        if not code:
            lines[k] = line.replace("|", "\\|").replace("*", "\\*")


def setup(app):
    # Before numpydoc, which adds markup of its own.
    app.connect("autodoc-process-docstring", keep_mathematics, priority=100)
