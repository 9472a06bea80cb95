# config/initializers/outbox.rb
ActiveRecord::SchemaDumper.ignore_tables += [/\Aoutbox_/]
