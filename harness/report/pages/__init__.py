"""Renders the report's model as HTML pages: the grid, one page for each cell, and pages on numerics,
convergence, patches and changes. Start with `page_templates`, which sets up the templates; `figures` chooses
the blocks that show a check's measurements, and `svg` draws charts.
"""
