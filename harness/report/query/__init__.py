"""The query language that filters the grid (`check:loss & fail`), on the command line as in the browser.
Start with `grid_query`; the page's script implements the same language, and tests compare the two.
"""
