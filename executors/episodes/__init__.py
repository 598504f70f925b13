"""Episodes: one attempt at one task from its first observation to its trajectory."""
