"""`wsgi_router.wsgi:application` for WSGI servers."""

from wsgi_router import app

application = app.application()
