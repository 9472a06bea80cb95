"""Places two orders with shop/orders.py; the second is rejected at COMMIT."""

import os
from urllib.parse import unquote, urlsplit

import django
from django.conf import settings
from django.db import IntegrityError

url = urlsplit(os.environ["DATABASE_URL"])
settings.configure(
    INSTALLED_APPS=["shop"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": url.hostname,
            "PORT": url.port,
            "USER": unquote(url.username),
            "PASSWORD": unquote(url.password or ""),
            "NAME": url.path[1:],
        }
    },
)
django.setup()

from shop.orders import place_order  # noqa: E402, models want settings first

place_order("customer-7", 4200)
try:
    place_order("unknown", 100)
except IntegrityError:
    print("one order placed, one rolled back")
else:
    raise SystemExit("the order of an unknown customer was accepted")
