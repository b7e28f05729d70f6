"""Is the answer right? One module an oracle; each reads what the timed run produced and writes one result file."""
