"""The versions that the files of a repository pin: requirements, Dockerfiles, scripts, READMEs, submodules."""
