"""What happens on an owner, in numbers."""
