"""What a micro-batch contributes to an optimiser step: losses per token, corrections, KL, and their sums."""
