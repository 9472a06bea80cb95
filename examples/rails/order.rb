class OutboxEvent < ApplicationRecord
  self.record_timestamps = false # created_at is the database's to give
end

class Order < ApplicationRecord
  def self.place(customer_id, cents)
    transaction do
      order = create!(customer_id: customer_id, cents: cents)
      OutboxEvent.create!(topic: "orders.created", key: customer_id,
                          payload: { order: order.id, cents: cents },
                          headers: { source: "rails" })
      order
    end
  end
end
