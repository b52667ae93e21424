"""Experiments that answer the questions of tutorials on distributed training by measurements."""
