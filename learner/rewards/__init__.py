"""Rewards that the learner gives or shapes: reward models, their server, and one reward per attempt."""
