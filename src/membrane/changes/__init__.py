"""Reviewed workspaces: what a command changed, kept apart from the workspace until it is applied."""
