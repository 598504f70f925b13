"""Processes that train: their backend, optimisers, schedules, and which sequences each of them takes."""
