"""What runs in the container: sent there as source text, so standard library only, and Python 3.8 and later."""
