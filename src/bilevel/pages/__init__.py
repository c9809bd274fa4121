"""Offline HTML pages: one file, light and dark, no network, pictures in the colours of the page."""

from .page import render_page
from .picture import Picture, picture_of

__all__ = ["Picture", "picture_of", "render_page"]
