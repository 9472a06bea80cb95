import java.net.URI;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.sql.SQLException;
import org.postgresql.ds.PGSimpleDataSource;

/** Places two orders with Orders.java: the second is refused at COMMIT. */
class Run {
    public static void main(String[] args) throws SQLException {
        URI url = URI.create(System.getenv("DATABASE_URL"));
        String[] login = url.getRawUserInfo().split(":", 2);
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setServerNames(new String[] {url.getHost()});
        source.setPortNumbers(new int[] {url.getPort()});
        source.setDatabaseName(url.getPath().substring(1));
        source.setUser(URLDecoder.decode(login[0], StandardCharsets.UTF_8));
        source.setPassword(login.length < 2 ? "" : URLDecoder.decode(login[1], StandardCharsets.UTF_8));

        Orders.place(source, "customer-7", 4200);
        try {
            Orders.place(source, "unknown", 100);
        } catch (SQLException e) {
            if (!"23503".equals(e.getSQLState())) { // foreign_key_violation
                throw e;
            }
            System.out.println("one order placed, one rolled back");
            return;
        }
        throw new IllegalStateException("the order of an unknown customer was accepted");
    }
}
