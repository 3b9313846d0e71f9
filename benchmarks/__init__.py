"""Measurements, each a ratio within one run: `make bench`, or `python -m benchmarks NAME...` for some."""
