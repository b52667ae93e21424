"""Reports scaling studies, as HTML pages and as text."""
