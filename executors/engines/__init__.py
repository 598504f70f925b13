"""Engines: what samples tokens, and the checks that every engine passes."""
