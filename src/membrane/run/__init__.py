"""One lifetime of a sandbox: what it is made from, its processes, and what it leaves."""
