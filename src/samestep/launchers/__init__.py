"""Detects the launcher that started this process, and reads its variables."""
