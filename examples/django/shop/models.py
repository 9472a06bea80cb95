from django.db import models


class Order(models.Model):
    id = models.BigAutoField(primary_key=True)
    customer_id = models.TextField()
    cents = models.IntegerField()

    class Meta:
        managed = False  # shop.sql makes it
        db_table = "orders"
