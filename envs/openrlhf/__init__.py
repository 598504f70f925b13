"""What files written for OpenRLHF need here: the modules they import, and agents of theirs as environments."""
