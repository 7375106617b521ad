"""Checks as pure functions of a hardware snapshot."""
