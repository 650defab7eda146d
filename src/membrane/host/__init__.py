"""The only package that touches the kernel through ctypes: system calls, namespaces, mounts, filters."""
