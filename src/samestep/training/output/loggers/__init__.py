"""Loggers that show a running training; the run folder has all figures as well."""
