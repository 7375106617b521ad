"""What a running miractl says of itself, and its exports."""
