"""`python -m tokenyard` is `tokenyard`."""

import sys

from tokenyard.cli import main

sys.exit(main())
