"""Writes a report to its folder and keeps it up to date while a run goes on. Start with
`publish.render_all`; `live_report` renders again only the cells that changed.
"""
