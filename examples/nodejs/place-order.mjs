export async function placeOrder(pool, customer, cents) {
  const client = await pool.connect();
  try {
    await client.query("BEGIN");
    const { rows } = await client.query(
      "INSERT INTO orders (customer_id, cents) VALUES ($1, $2) RETURNING id",
      [customer, cents],
    );
    const order = Number(rows[0].id); // pg hands out bigint as text
    await client.query(
      "INSERT INTO outbox_events (topic, key, payload, headers) VALUES ($1, $2, $3, $4)",
      ["orders.created", customer, JSON.stringify({ order, cents }), JSON.stringify({ source: "node" })],
    );
    await client.query("COMMIT");
    return order;
  } catch (error) {
    await client.query("ROLLBACK");
    throw error;
  } finally {
    client.release();
  }
}
