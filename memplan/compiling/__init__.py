"""One model, one schedule, one arena: passes over a Program, and its execution."""
