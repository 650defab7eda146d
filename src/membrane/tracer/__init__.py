"""The process that watches a session: what the kernel reports of it, which calls are refused, and who did it."""
