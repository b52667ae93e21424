"""From a scaling study to a page, and to a table on a terminal."""
