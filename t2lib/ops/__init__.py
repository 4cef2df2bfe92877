"""Operators: pure functions, one folder each, one file a rung of the ladder."""
