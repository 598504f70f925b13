"""Running what may hang, crash or be hostile: killable worker processes."""
