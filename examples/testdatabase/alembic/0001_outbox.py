from pathlib import Path

from alembic import op

revision, down_revision = "0001", None


def upgrade():
    op.execute(Path(__file__).with_name("outbox.sql").read_text())


def downgrade():
    pass
