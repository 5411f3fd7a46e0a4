"""Finds the code of this project that a function can reach. It reads the source files and does not import
them. `module_facts` reads one file: its top-level definitions, what each refers to, and what runs on import.
`reachable_code` follows these references from file to file and computes a digest of everything that can be
reached from a starting point; the code part of every key is such a digest. `stored_facts` stores what was
read, so that the next command reads only changed files. Start with `reachable_code`."""
