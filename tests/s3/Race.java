import io.delta.storage.LogStore;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.FileAlreadyExistsException;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/** A writer of commits by a log store: for each path on standard input, says whether it won it. */
public class Race {
    public static void main(String[] arguments) throws Exception {
        Configuration conf = new Configuration();
        for (int at = 2; at < arguments.length; at++) {
            String[] setting = arguments[at].split("=", 2);
            conf.set(setting[0], setting[1]);
        }
        LogStore store = (LogStore) Class.forName(arguments[0]).getConstructor(Configuration.class).newInstance(conf);
        BufferedReader paths = new BufferedReader(new InputStreamReader(System.in));
        store.write(new Path(paths.readLine() + arguments[1]), List.of("warm").iterator(), false, conf);
        System.out.println("ready");
        for (String path = paths.readLine(); path != null; path = paths.readLine()) {
            try {
                store.write(new Path(path), List.of(arguments[1], "the end").iterator(), false, conf);
                System.out.println("won");
            } catch (FileAlreadyExistsException taken) {
                System.out.println("lost");
            } catch (Throwable other) {
                System.out.println(other);
            }
        }
        System.exit(0);
    }
}
