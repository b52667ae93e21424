"""Reports of scaling studies, as HTML pages and as text."""
