"""Readers of a finished run directory: HTML, charts, Markdown, JUnit. This package is code; runs land in `runs/`."""
