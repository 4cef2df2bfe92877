"""t2lib: operators that move information along the two axes of a Transformer, tokens and layers."""

__version__ = "0.1.0"
