"""Holds the back ends that run a job: on this node, and on several nodes."""
