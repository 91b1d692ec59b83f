"""`python -m wsgi_router`."""

import sys

from wsgi_router.cli import main

sys.exit(main())
