"""The options of the command line, each declared once; a group of options is a dataclass."""
