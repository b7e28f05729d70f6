"""Traffic shapes, one YAML each with its reason, and the reader that turns one into requests."""
