"""`gunicorn -c gunicorn.conf.py` serves. What is set below wins over wsgi_router/gunicorn_conf.py, which says
why each value is what it is; hooks that are replaced here should call those they replace.
"""

from wsgi_router.gunicorn_conf import *  # noqa: F403
