"""How much memory messages, passes and results may hold, and when malloc gives memory back."""
