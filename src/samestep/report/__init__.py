"""From the records of runs to a page that one can read."""
