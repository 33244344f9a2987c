"""What runs look like: the streams and roles of algorithms that learn from replay, or rollouts."""
