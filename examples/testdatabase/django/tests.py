import json

from django.db.models import TextField
from django.db.models.functions import Cast
from django.test import TestCase

from .orders import OutboxEvent


class OutboxTest(TestCase):
    def test_event(self):
        OutboxEvent.objects.create(topic="orders.created", payload={"order": 1})
        event = OutboxEvent.objects.defer("payload", "headers").annotate(text=Cast("payload", TextField())).get()
        self.assertEqual(json.loads(event.text), {"order": 1})
