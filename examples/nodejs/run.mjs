// Places two orders with place-order.mjs; the second is rejected at COMMIT.
import { createRequire } from "node:module";
import { placeOrder } from "./place-order.mjs";

// Not import: that does not look into NODE_PATH.
const { Pool } = createRequire(import.meta.url)("pg");

const pool = new Pool({ connectionString: process.env.DATABASE_URL });
try {
  await placeOrder(pool, "customer-7", 4200);
  try {
    await placeOrder(pool, "unknown", 100);
    throw new Error("the order of an unknown customer was accepted");
  } catch (error) {
    if (error.code !== "23503") throw error; // foreign_key_violation
    console.log("one order placed, one rolled back");
  }
} finally {
  await pool.end();
}
