"""The library: sandboxes in a Python program (``docs/library.md``)."""
