"""The page of the group in a real Chromium."""
