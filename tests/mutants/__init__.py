"""Damaged copies of every kind of file from outside.

None may crash, hang or surprise its reader.
"""
