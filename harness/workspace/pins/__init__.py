"""The versions that files of a repository pin: requirements, Dockerfiles, scripts, READMEs, submodules."""
