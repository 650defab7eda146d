"""The data plane of one session: the network process and its sans-IO parts."""
