# Places two orders with order.rb: the second is refused at COMMIT.
require "active_record"

ActiveRecord::Base.establish_connection(ENV.fetch("DATABASE_URL"))

class ApplicationRecord < ActiveRecord::Base
  self.abstract_class = true
end

require_relative "order"

Order.place("customer-7", 4200)
begin
  Order.place("nobody", 100)
  abort "the order of nobody was taken"
rescue ActiveRecord::InvalidForeignKey
  puts "one order placed, one rolled back"
end
