"""One file per verb: parse, call, print, exit code."""
