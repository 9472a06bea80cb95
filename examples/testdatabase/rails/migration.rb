# db/migrate/20260101000000_create_outbox.rb
class CreateOutbox < ActiveRecord::Migration[6.1]
  def up
    execute File.read(Rails.root.join("db/outbox.sql"))
  end

  def down
    raise ActiveRecord::IrreversibleMigration
  end
end
