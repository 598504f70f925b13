"""`turngym traces`: recorded episodes shown, scored anew and replayed."""
