"""The record of a session: the sources of its events and the process that reads them."""
