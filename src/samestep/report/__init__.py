"""Reports: HTML pages about runs and scaling studies."""
