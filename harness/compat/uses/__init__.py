"""What a package uses from other packages, and whether a version of these packages has it.

`use_visitor` finds the uses in one file, `package_uses` those of a whole package, `use_check` compares them
with the API surface of a provider, and `package_pairs` caches the result for a pair of packages. Start with
`package_pairs.ConsumerAnalysis`.
"""
