"""Weight updaters: objects that deliver weights to workers in a way of their own."""
