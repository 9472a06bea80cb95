import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import javax.sql.DataSource;

class Orders {
    static long place(DataSource source, String customer, int cents) throws SQLException {
        try (Connection db = source.getConnection()) {
            db.setAutoCommit(false);
            try (PreparedStatement order = db.prepareStatement(
                    "INSERT INTO orders (customer_id, cents) VALUES (?, ?) RETURNING id");
                 PreparedStatement event = db.prepareStatement(
                    "INSERT INTO outbox_events (topic, key, payload, headers) VALUES (?, ?, ?::json, ?::json)")) {
                order.setString(1, customer);
                order.setInt(2, cents);
                long id;
                try (ResultSet row = order.executeQuery()) {
                    row.next();
                    id = row.getLong(1);
                }
                event.setString(1, "orders.created");
                event.setString(2, customer);
                event.setString(3, "{\"order\": %d, \"cents\": %d}".formatted(id, cents));
                event.setString(4, "{\"source\": \"java\"}");
                event.executeUpdate();
                db.commit();
                return id;
            } catch (SQLException | RuntimeException e) {
                db.rollback();
                throw e;
            }
        }
    }
}
