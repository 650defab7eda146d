"""The eBPF programs, and what loads them: object file, BTF, maps and links.  It knows no policy and no event."""
