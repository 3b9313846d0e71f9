"""Section 2 of the paper as torch modules: no files, no printing."""
