"""Where environments live while their episodes run, and who may call them when."""
