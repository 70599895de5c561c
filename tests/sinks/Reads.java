import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.LocalDate;
import java.time.OffsetDateTime;
import java.util.Arrays;
import java.util.Timer;
import java.util.TimerTask;

/** What a program on the JVM sees of a serving copy, a line each: `java -cp postgresql.jar Reads.java URL`. */
public class Reads {
    public static void main(String[] arguments) throws SQLException {
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            var about = connection.getMetaData();
            try (ResultSet tables = about.getTables(null, "lake", "%", new String[] {"TABLE"})) {
                while (tables.next()) {
                    System.out.println("table " + tables.getString("TABLE_NAME") + ": " + tables.getString("REMARKS"));
                }
            }
            try (ResultSet columns = about.getColumns(null, "lake", "one", "%")) {
                while (columns.next()) {
                    System.out.println("column " + columns.getString("COLUMN_NAME") + " " + columns.getString("TYPE_NAME")
                        + " " + columns.getInt("COLUMN_SIZE") + ": " + columns.getString("REMARKS"));
                }
            }
            try (ResultSet keys = about.getPrimaryKeys(null, "lake", "one")) {
                while (keys.next()) {
                    System.out.println("key " + keys.getString("COLUMN_NAME"));
                }
            }
            var sql = "select exact, word, day, at, words, flag, double, bytes from lake.one where id = ?";
            try (var statement = connection.prepareStatement(sql)) {
                for (long id : new long[] {1, 2, 4}) {
                    statement.setLong(1, id);
                    try (ResultSet row = statement.executeQuery()) {
                        row.next();
                        var words = row.getArray(5);
                        System.out.println("row " + id + ": " + row.getObject(1, BigDecimal.class) + "|" + row.getString(2) + "|"
                            + row.getObject(3, LocalDate.class) + "|" + row.getObject(4, OffsetDateTime.class) + "|"
                            + (words == null ? null : Arrays.toString((Object[]) words.getArray())) + "|"
                            + row.getObject(6) + "|" + row.getObject(7) + "|" + Arrays.toString(row.getBytes(8)));
                    }
                }
            }
            try (var statement = connection.createStatement()) {
                new Timer(true).schedule(new TimerTask() {
                    public void run() {
                        try {
                            statement.cancel();
                        } catch (SQLException ignored) {
                            System.out.println("not cancelled");
                        }
                    }
                }, 500);
                statement.execute("select pg_sleep(60)");
            } catch (SQLException error) {
                System.out.println("cancelled " + error.getSQLState());
            }
            try (var statement = connection.createStatement()) {
                statement.execute("delete from lake.one");
            } catch (SQLException error) {
                System.out.println("refused " + error.getSQLState());
            }
        }
    }
}
