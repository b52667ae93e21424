"""The networks of the built-in recipes."""
