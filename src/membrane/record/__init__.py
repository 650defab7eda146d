"""The record of a session: the store that is written while it runs, the readers of it, and what is made of it."""
