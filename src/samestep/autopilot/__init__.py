"""Hosting a script that knows of one worker only: replicated on all, its models' calls shared out."""
