"""Pure arithmetic: memory, slots, staging, threads."""
