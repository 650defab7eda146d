"""Pure: policy and host facts to everything that will be done, as data."""
