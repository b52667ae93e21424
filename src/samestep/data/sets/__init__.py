"""The data sets that can be named: one small file each."""
