"""The versions that files of a repository pin: requirements, Dockerfiles, scripts, READMEs, submodules.

Read first: `pinned_versions`, then `install_commands`.
"""
