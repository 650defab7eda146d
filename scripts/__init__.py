"""What is run from a clone, beside the programs that are installed: ``contracts`` (of imports) and ``mutants``."""
