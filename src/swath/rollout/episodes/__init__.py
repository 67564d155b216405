"""What is made of fragments: trajectory ids, whole episodes, n-step returns, advantages."""
