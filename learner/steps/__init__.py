"""What comes between two updates: tasks drawn, groups gathered and filtered, rewards and advantages of a step."""
