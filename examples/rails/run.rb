# Places two orders with order.rb; the second is rejected at COMMIT.
require "active_record"

ActiveRecord::Base.establish_connection(ENV.fetch("DATABASE_URL"))

class ApplicationRecord < ActiveRecord::Base
  self.abstract_class = true
end

require_relative "order"

Order.place("customer-7", 4200)
begin
  Order.place("unknown", 100)
  abort "the order of an unknown customer was accepted"
rescue ActiveRecord::InvalidForeignKey
  puts "one order placed, one rolled back"
end
