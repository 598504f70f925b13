"""Whether options of a run fit each other; torch-free, so that a mistake shows at once."""
