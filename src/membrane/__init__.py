"""A selectively permeable boundary for AI agents and any other command."""
