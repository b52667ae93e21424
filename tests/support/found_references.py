"""Finds the references to file functions when it is imported: forked processes do not search for them."""

from samestep.autopilot.files.file_calls import find_references

find_references()
