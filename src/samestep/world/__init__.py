"""The ranks of one job and how they talk."""
