"""Kinds of files that hold records: what scans and reads each."""
