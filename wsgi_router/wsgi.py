"""`wsgi_router.wsgi:application` for WSGI servers."""

from wsgi_router.app import create_app

application = create_app()
