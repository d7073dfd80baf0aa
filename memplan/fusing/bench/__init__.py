"""Networks timed under several contenders that take turns: `bench` gives records."""
