"""Caches and policies on recorded routing: what would have been hit. No torch."""
