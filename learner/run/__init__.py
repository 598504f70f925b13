"""One run from its options to its report: checks, processes, checkpoints, and the folder it leaves."""
