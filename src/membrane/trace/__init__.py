"""The record of a session: written by ``record``, read by ``reading``, and what is made of it."""
