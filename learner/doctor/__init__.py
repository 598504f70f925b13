"""`turngym doctor`: why a run's reward is flat or its training unstable, from what its folder holds."""
