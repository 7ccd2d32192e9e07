"""A served model: deployments, their passes and memory, and what loads come to on them."""
