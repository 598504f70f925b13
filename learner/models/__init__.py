"""Models over packed sequences: attention, logprobs, adapters, critics, images, and the folders they are kept in."""
