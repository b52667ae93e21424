"""The named data sets."""
