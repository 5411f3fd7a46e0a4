"""Which of this project's own code a function can reach, found by reading the source files, not by importing
them. `module_facts` reads one file: its top-level definitions, what each refers to, and what runs on import.
`reachable_code` follows these references from file to file and gives a digest of everything a starting point
can reach; the code part of every key is such a digest. `stored_facts` keeps what was read for the next
command. Start with `reachable_code`."""
