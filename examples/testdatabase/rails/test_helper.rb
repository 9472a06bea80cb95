# test/test_helper.rb or spec/rails_helper.rb, after the schema of the test database was loaded
def load_outbox
  ActiveRecord::Base.connection.execute(File.read(Rails.root.join("db/outbox.sql")))
end
load_outbox
