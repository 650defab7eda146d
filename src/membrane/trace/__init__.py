"""The record of a session: its sources and the process that reads them, the store, and what is made of it."""
