"""A script as text: what it is and what it does, read without running it."""
