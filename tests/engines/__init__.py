"""Honest and dishonest OpenAI-compatible engines that the gate must tell apart."""
