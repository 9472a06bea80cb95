from django.db import models, transaction

from .models import Order


class OutboxEvent(models.Model):
    id = models.BigAutoField(primary_key=True)
    topic = models.TextField()
    key = models.TextField(null=True)
    payload = models.JSONField()
    headers = models.JSONField(null=True)

    class Meta:
        managed = False  # relay migrate makes it
        db_table = "outbox_events"


@transaction.atomic
def place_order(customer_id, cents):
    order = Order.objects.create(customer_id=customer_id, cents=cents)
    OutboxEvent.objects.create(
        topic="orders.created",
        key=customer_id,
        payload={"order": order.id, "cents": cents},
        headers={"source": "django"},
    )
    return order
