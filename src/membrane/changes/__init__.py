"""Reviewed workspaces: what a command changed in its copy, and what of it is put in place."""
