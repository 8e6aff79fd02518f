"""Decoded pixels in a memory-mapped cache, which later epochs and runs only read."""
