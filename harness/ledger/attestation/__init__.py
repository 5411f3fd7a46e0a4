"""Who measured an outcome, and whether hardware evidence of another machine is believed. Start with `belief`;
`statement` is what a runner signs, `ssh_keygen` signs and verifies it with OpenSSH.
"""
