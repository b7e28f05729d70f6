"""What holds for every test: the session that runs them is not the CI job that a user's gate would run in."""

import os

# A CI job refuses a quick run (harness/modes.py), and most tests' gates are quick; its tests set it themselves.
os.environ.pop("CI", None)
