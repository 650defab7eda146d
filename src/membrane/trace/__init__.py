"""The record of a session: the sources of its events, the process that reads them, and what is made of it."""
