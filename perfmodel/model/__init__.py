"""What a model is made of: architecture facts and parameter counts.

From `config.json` (`config`, `families/`), presets (`presets/`) or by hand (`build`). Nothing about
how it is split or run: that is `strategy` and `operations`.
"""
