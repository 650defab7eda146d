"""What the rules match in a workspace: scan, protected names, live watch."""
