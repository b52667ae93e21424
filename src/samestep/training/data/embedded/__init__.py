"""The data set in the package, and the script that packed it."""
