"""Damaged copies of every file that is read from outside: none may crash, hang or surprise what reads it."""
