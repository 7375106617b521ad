"""The expert cache under a transformers model."""
