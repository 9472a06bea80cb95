from pathlib import Path

from django.db import migrations

SCHEMA = Path(__file__).with_name("outbox.sql").read_text()


class Migration(migrations.Migration):
    operations = [migrations.RunSQL(SCHEMA, migrations.RunSQL.noop)]
