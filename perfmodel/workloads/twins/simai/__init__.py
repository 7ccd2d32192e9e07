"""SimAI-Analytical."""
