"""Tests with the libraries whose formats these are: `make test-exchange` installs them."""

import importlib.util

# In an environment without them, as that of `make test`, there is nothing to collect.
collect_ignore_glob = [] if importlib.util.find_spec("minari") else ["test_*.py"]
