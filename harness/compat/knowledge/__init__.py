"""The surface pack: what every release of the packages of the stack has, in one small file.

`module_outline` reduces a module to its names and signatures, `pack_file` stores outlines of many releases,
`pack_build` reads releases from a package index, and `surface_pack` answers questions. Start with
`surface_pack.SurfacePack`.
"""
