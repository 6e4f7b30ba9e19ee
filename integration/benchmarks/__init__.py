"""Benchmarks: everything that is compared runs in one run, and what is printed are ratios."""
