"""What a model is made of: architecture facts and parameter counts, presets, config.json."""
