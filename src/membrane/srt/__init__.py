"""The command ``srt``, the name and the settings of sandbox-runtime, in front of the same run.

A guest: besides this folder only ``ui.importer`` (``membrane config import srt``) knows that it is there.
"""
