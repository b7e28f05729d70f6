"""What holds for every test: the session that runs them is not the CI job that a user's gate would run in."""

import os

from hypothesis import settings

# A CI job refuses a quick run (harness/modes.py), and most tests' gates are quick; its tests set it themselves.
os.environ.pop("CI", None)

# A machine that is shared makes any example late.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")
