"""The API surface of a package, read from its sources without importing it.

`api_surface.ApiSurface` looks up modules, names, classes and signatures. The other modules read single
aspects of the syntax trees. Start with `ApiSurface.find`.
"""
