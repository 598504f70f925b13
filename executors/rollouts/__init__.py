"""Which episodes begin when, and which of them the learner gets."""
