"""Graders: what says whether an answer is right, and never says 0 when it does not know."""
