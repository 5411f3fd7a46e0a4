"""What must never reach a disk: the credentials of this machine, and how they are kept out of stored text.

`stored_variables` is the allow-list of environment variables whose values may be stored, with the reasons.
`credential_files` lists the files in which tools keep credentials. `secret_values` collects the values of
everything else, and `masking` replaces them, in every form in which tools print them.
"""
