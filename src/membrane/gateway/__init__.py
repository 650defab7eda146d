"""The gateway of one session: the process that carries the sandbox's traffic, and its sans-IO parts."""
