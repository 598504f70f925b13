"""Other people's collections of environments, each stepped through its own package."""
