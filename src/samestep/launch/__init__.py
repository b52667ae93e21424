"""One job anywhere: what to start, where, and what to do when it fails."""
