"""An OpenAI-compatible server whose requests are turns of an episode, recorded token for token."""
