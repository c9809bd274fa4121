"""Speed, always as ratios of two things measured side by side in one process on one thread."""
