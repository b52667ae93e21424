"""The named data sets, one file each."""
