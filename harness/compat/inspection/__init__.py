"""Reads what is installed somewhere: environments, images and lists of packages. Runs nothing that it reads.

`stated_packages.py` has the result, `package_lists.py`, `environments.py` and `image_archive.py` make it.
`file_faults.py`, `library_faults.py` and `installed_requirements.py` look for faults in it.
"""
