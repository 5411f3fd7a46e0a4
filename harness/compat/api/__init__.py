"""The check `api` and the commands `npu-matrix api`: do packages have the names that others import from them?

`consumers` lists the packages that are checked, `api_check` fetches them and judges, `api_analysis` does the
comparison in a process of its own, and `api_diff` compares two versions of one package. Start with
`api_check.run`.
"""
