"""The folded timeline as it travels in a page: columns of whole numbers, packed, which the browser unfolds."""
